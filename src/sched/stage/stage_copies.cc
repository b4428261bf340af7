#include "sched/stage/stage_copies.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"

namespace millrace::sched {
namespace {

using cache::CopyKind;

/// Pages of one copy that are with the page store at a time; the store bounds those of all copies together.
constexpr size_t kConcurrentPages = 16;
/// Time that the pages with the page store get to arrive after the end of an epoch.
constexpr async::Duration kTransferGrace = std::chrono::seconds(2);

}  // namespace

StageCopies::StageCopies(async::Runtime& runtime, StageRunner& runner, async::TaskGroup& tasks, CopyAcks& acks,
                         const StageBounds& bounds)
    : runtime_(runtime),
      runner_(runner),
      tasks_(tasks),
      acks_(acks),
      windows_(bounds.windows),
      tier_(runner.host_tier()),
      transfer_ended_(runtime) {
  tier_.valid.resize(bounds.group_count());
  for (size_t group = 0; group < tier_.valid.size(); ++group) tier_.valid[group].resize(bounds.pools(group).host);
}

void StageCopies::stop() {
  if (std::exchange(stopping_, true) || transfers_ == 0) return;
  tasks_.spawn("end of transfers", give_up_late_transfers());
}

asio::awaitable<void> StageCopies::give_up_late_transfers() {
  const async::TimePoint deadline = runtime_.now() + kTransferGrace;
  while (transfers_ > 0) {
    const bool has_ended_one = co_await transfer_ended_.wait_until(deadline);
    if (has_ended_one) continue;
    for (uint32_t group = 0; group < tier_.valid.size(); ++group) {
      if (cache::PageStore* const store = runner_.store(group)) store->give_up();
    }
    co_return;
  }
}

void StageCopies::check_valid(const cache::PageCopy& copy) const {
  for (const HostPageId page : copy.host) {
    if (tier_.valid[copy.group][page.value()]) continue;
    throw ErrorException(
        make_error(ErrorCode::kData, "copy {} reads host page {}, which holds nothing", copy.id.value(), page.value()));
  }
}

void StageCopies::set_valid(const cache::PageCopy& copy, size_t count, bool valid) {
  for (size_t i = 0; i < count; ++i) tier_.valid[copy.group][copy.host[i].value()] = valid;
}

// A stage that missed an earlier verify missed an epoch, in which its pages may have been given to other prefixes.
void StageCopies::answer_verify(const cache::PageCopy& copy) {
  if (tier_.last_verify != copy.previous_verify) {
    for (std::vector<bool>& pages : tier_.valid) pages.assign(pages.size(), false);
  }
  tier_.last_verify = copy.id;
  const std::vector<bool>& valid = tier_.valid[copy.group];
  const auto missing = std::ranges::find_if(copy.host, [&valid](HostPageId page) { return !valid[page.value()]; });
  acks_.add_own(copy.id, static_cast<size_t>(missing - copy.host.begin()));
}

void StageCopies::start(const std::vector<cache::PageCopy>& copies) {
  for (const cache::PageCopy& copy : copies) {
    if (copy.kind == CopyKind::kLoad || copy.kind == CopyKind::kStore) continue;
    if (copy.kind == CopyKind::kVerify) {
      answer_verify(copy);
      continue;
    }
    if (!has_store()) {
      throw ErrorException(
          make_error(ErrorCode::kData, "copy {} needs a page store, and this stage has none", copy.id.value()));
    }
    if (copy.kind == CopyKind::kPersist) check_valid(copy);
    if (copy.kind == CopyKind::kFetch) set_valid(copy, copy.host.size(), false);
    tasks_.spawn("page store", run_with_page_store(copy));
  }
}

void StageCopies::load(const std::vector<cache::PageCopy>& copies) {
  std::vector<cache::PageCopy> loads;
  for (const cache::PageCopy& copy : copies) {
    if (copy.kind != CopyKind::kLoad) continue;
    check_valid(copy);
    loads.push_back(copy);
  }
  if (loads.empty()) return;
  const async::Event loaded = runner_.begin_load(loads);
  tasks_.spawn("load pages", finish_loads(std::move(loads), loaded));
}

asio::awaitable<void> StageCopies::finish_loads(std::vector<cache::PageCopy> loads, async::Event loaded) {
  co_await loaded.wait();
  for (const cache::PageCopy& copy : loads) acks_.add_own(copy.id, copy.page_count());
}

void StageCopies::store(const std::vector<cache::PageCopy>& copies) {
  for (const cache::PageCopy& copy : copies) {
    if (copy.kind != CopyKind::kStore) continue;
    set_valid(copy, copy.host.size(), false);
    tasks_.spawn("store pages", run_store(copy));
  }
}

asio::awaitable<void> StageCopies::run_store(cache::PageCopy copy) {
  co_await runner_.store_pages(copy);
  set_valid(copy, copy.host.size(), true);
  acks_.add_own(copy.id, copy.page_count());
}

asio::awaitable<void> StageCopies::run_with_page_store(cache::PageCopy copy) {
  const bool finds_last = probes_snapshots(copy);
  Batch batch{copy, 0, finds_last ? 0 : copy.page_count()};
  ++transfers_;
  // Page stores do not throw. After another failure, such as a lack of memory, no page counts as good.
  async::TaskGroup workers(runtime_, [&batch](const std::string&, std::exception_ptr failure) {
    batch.good = 0;
    log::error("copy {} to or from the page store has failed: {}", batch.copy.id.value(), async::describe(failure));
  });
  for (size_t i = 0; i < std::min(kConcurrentPages, copy.page_count()); ++i) {
    workers.spawn("page", finds_last ? find_last_page(batch) : copy_pages(batch));
  }
  co_await workers.join();
  --transfers_;
  transfer_ended_.notify_all();
  if (copy.kind == CopyKind::kFetch) set_valid(copy, batch.good, true);
  acks_.add_own(copy.id, batch.good);
}

// No page after the first missing one is of use, but a page that cannot be written says nothing about the others.
asio::awaitable<void> StageCopies::copy_pages(Batch& batch) {
  const size_t count = batch.copy.page_count();
  while (!stopping_ && batch.next < (batch.copy.kind == CopyKind::kPersist ? count : batch.good)) {
    const size_t index = batch.next++;
    const bool is_good = co_await copy_page(batch.copy, index);
    if (!is_good) batch.good = std::min(batch.good, index);
  }
  if (stopping_) batch.good = std::min(batch.good, batch.next);
}

bool StageCopies::probes_snapshots(const cache::PageCopy& copy) const {
  return copy.kind == CopyKind::kProbe && copy.group > 0 && windows_[copy.group - 1].kind == GroupKind::kState;
}

// Few page boundaries have a snapshot: the pages up to the last one that has are good.
asio::awaitable<void> StageCopies::find_last_page(Batch& batch) {
  const size_t count = batch.copy.page_count();
  while (!stopping_ && batch.next < count - batch.good) {
    const size_t index = count - 1 - batch.next++;
    const bool is_good = co_await copy_page(batch.copy, index);
    if (is_good) batch.good = std::max(batch.good, index + 1);
  }
  if (stopping_) batch.good = 0;
}

bool StageCopies::has_store() const {
  for (uint32_t group = 0; group < tier_.valid.size(); ++group) {
    if (runner_.store(group) != nullptr) return true;
  }
  return false;
}

// A stage without layers in the first group probes another one: its pages alone say nothing. A state group has few of
// them, so that it says nothing either.
cache::PageStore* StageCopies::store_of(const cache::PageCopy& copy) const {
  cache::PageStore* store = runner_.store(copy.group);
  const bool probes_first = copy.kind == CopyKind::kProbe && copy.group == 0;
  for (uint32_t i = 0; probes_first && store == nullptr && i < windows_.size(); ++i) {
    if (windows_[i].kind == GroupKind::kWindow) store = runner_.store(i + 1);
  }
  return store;
}

asio::awaitable<bool> StageCopies::copy_page(const cache::PageCopy& copy, size_t index) {
  cache::PageStore* const found = store_of(copy);
  if (found == nullptr) co_return true;  // the stage has nothing to keep
  cache::PageStore& store = *found;
  bool is_good = false;
  if (copy.kind == CopyKind::kPersist) {
    is_good = co_await store.put(copy.keys[index], runner_.host_page(copy.group, copy.host[index]));
  } else if (copy.kind == CopyKind::kProbe) {
    is_good = co_await store.exists(copy.keys[index]);
  } else {
    is_good = co_await store.get(copy.keys[index], runner_.host_page(copy.group, copy.host[index]));
  }
  co_return is_good;
}

}  // namespace millrace::sched
