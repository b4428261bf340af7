#include "cache/store/queued_store.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <new>
#include <utility>

#include "async/deadline.h"
#include "base/check.h"
#include "base/log.h"
#include "base/thread_name.h"

namespace millrace::cache {
namespace {

void add_tokens(int descriptor, uint64_t count) {
  // Fails only when the counter would pass 2^64 - 2.
  [[maybe_unused]] const ssize_t written = write(descriptor, &count, sizeof count);
}

}  // namespace

StoreQueue::StoreQueue(size_t capacity)
    : capacity_(capacity), wake_(eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC | EFD_NONBLOCK)) {
  CHECK(wake_ >= 0, "eventfd: errno {}", errno);
}

StoreQueue::~StoreQueue() {
  ::close(wake_);
}

bool StoreQueue::try_push(StoreOpPtr op) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_.load() || waiting_.size() >= capacity_) return false;
    waiting_.push_back(std::move(op));
  }
  add_tokens(wake_, 1);
  return true;
}

StoreOpPtr StoreQueue::try_pop() {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) return nullptr;
  StoreOpPtr op = std::move(waiting_.front());
  waiting_.pop_front();
  return op;
}

std::vector<StoreOpPtr> StoreQueue::try_pop_batch(size_t most, size_t workers) {
  const std::lock_guard lock(mutex_);
  const size_t count = std::min(most, (waiting_.size() + workers - 1) / workers);
  const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(count);
  std::vector<StoreOpPtr> batch(std::make_move_iterator(waiting_.begin()), std::make_move_iterator(end));
  waiting_.erase(waiting_.begin(), end);
  return batch;
}

bool StoreQueue::wait(int timeout_ms) {
  pollfd waiting{wake_, POLLIN, 0};
  if (poll(&waiting, 1, timeout_ms) <= 0) return false;
  uint64_t token = 0;
  return read(wake_, &token, sizeof token) == sizeof token;
}

std::vector<StoreOpPtr> StoreQueue::close(size_t workers) {
  std::vector<StoreOpPtr> rest;
  {
    const std::lock_guard lock(mutex_);
    closed_.store(true);
    rest.assign(std::make_move_iterator(waiting_.begin()), std::make_move_iterator(waiting_.end()));
    waiting_.clear();
  }
  add_tokens(wake_, workers);
  return rest;
}

StoreStats StoreCounters::snapshot() const {
  StoreStats stats;
  stats.hits = hits;
  stats.misses = misses;
  stats.corrupt = corrupt;
  stats.foreign = foreign;
  stats.refused = refused;
  stats.written = written;
  stats.already_there = already_there;
  stats.evicted = evicted;
  stats.errors = errors;
  stats.bytes_read = bytes_read;
  stats.bytes_written = bytes_written;
  return stats;
}

QueuedStore::QueuedStore(async::Runtime& runtime, const StoreIdentity& identity, size_t max_queued_puts,
                         const StoreTimeLimits& limits)
    : format_(identity), put_queue_(max_queued_puts), runtime_(runtime), limits_(limits) {}

bool QueuedStore::push(const StoreOpPtr& op) {
  {
    const std::lock_guard lock(ops_mutex_);
    ops_.insert(op);
  }
  if (queue_of(op->kind()).try_push(op)) return true;
  const std::lock_guard lock(ops_mutex_);
  ops_.erase(op);
  return false;
}

// An operation that hangs says that others will: they are refused for the same time, unless one that is under way ends.
asio::awaitable<bool> QueuedStore::run(StoreOp::Kind kind, PageKey key, std::span<std::byte> into,
                                       std::span<const std::byte> page) {
  const auto self = shared_from_this();
  const async::Event done(runtime_);
  const auto op = std::make_shared<StoreOp>(kind, key, into, page, done);
  const async::TimePoint begun = runtime_.now();
  async::TimePoint& silent_until = silent_until_[kind == StoreOp::Kind::kPut ? 1 : 0];
  if (unavailable_.load() || begun < silent_until || !push(op)) {
    count(*op, false);
    co_return false;
  }
  bool is_given_up = false;
  const async::Deadline limit(runtime_, begun + limits_.operation, [&] {
    is_given_up = op->give_up();
    if (is_given_up) done.set();
  });
  co_await done.wait_uncancelled();
  if (!is_given_up) {
    silent_until = {};
    co_return op->ok();
  }
  {
    const std::lock_guard lock(ops_mutex_);
    ops_.erase(op);
  }
  count(*op, false);
  ++counters_.errors;
  silent_until = begun + 2 * limits_.operation;
  log_.warn("hangs", "page store {}: a {} has not ended after {} s and is given up; others are refused for as long",
            name(), kind == StoreOp::Kind::kPut ? "put" : "get or probe",
            std::chrono::duration<double>(limits_.operation).count());
  co_return false;
}

void QueuedStore::count(const StoreOp& op, bool ok) {
  if (op.kind() == StoreOp::Kind::kPut && !ok) ++counters_.refused;
  if (op.kind() != StoreOp::Kind::kGet) return;
  ++(ok ? counters_.hits : counters_.misses);
  if (ok) counters_.bytes_read += format_.page_bytes();
}

bool QueuedStore::begin(const StoreOpPtr& op) {
  try {
    return op->begin();
  } catch (const std::bad_alloc&) {
    ++counters_.errors;
    log_.warn("memory", "page store {}: no memory for a page of {} bytes", name(), format_.page_bytes());
    return false;
  }
}

void QueuedStore::finish(const StoreOpPtr& op, bool ok) {
  {
    const std::lock_guard lock(ops_mutex_);
    if (ops_.erase(op) == 0) return;
  }
  // Counted first, so that a caller finds its own operation in the counts.
  count(*op, ok);
  (void)op->finish(ok);
}

void QueuedStore::give_up() {
  std::vector<StoreOpPtr> waiting;
  {
    const std::lock_guard lock(ops_mutex_);
    waiting.assign(ops_.begin(), ops_.end());
  }
  for (const StoreOpPtr& op : waiting) finish(op, false);
}

void QueuedStore::start_thread(const std::string& thread_name, std::function<void()> body, size_t& running) {
  {
    const std::lock_guard lock(threads_mutex_);
    ++running;
  }
  threads_.emplace_back([self = shared_from_this(), thread_name, body = std::move(body), &running] {
    name_thread(thread_name.c_str());
    body();
    const std::lock_guard lock(self->threads_mutex_);
    --running;
    self->thread_ended_.notify_all();
  });
}

void QueuedStore::start_worker(const std::string& thread_name, std::function<void()> body) {
  start_thread(thread_name, std::move(body), running_workers_);
}

void QueuedStore::start_keeper(const std::string& thread_name, std::function<void()> body) {
  start_thread(thread_name, std::move(body), running_keepers_);
}

void QueuedStore::close() {
  for (StoreQueue* queue : {&read_queue_, &put_queue_}) {
    for (const StoreOpPtr& op : queue->close(threads_.size())) finish(op, false);
  }
  const auto deadline = std::chrono::steady_clock::now() + limits_.close;
  const auto wait_for_end_of = [&](const size_t& running) {
    std::unique_lock lock(threads_mutex_);
    return thread_ended_.wait_until(lock, deadline, [&] { return running == 0; });
  };
  const bool workers_ended = wait_for_end_of(running_workers_);
  stop_keepers();
  const bool have_ended = wait_for_end_of(running_keepers_) && workers_ended;
  give_up();
  if (!have_ended) {
    log::warn("page store {}: its I/O has not ended {} s after the store was closed, and is abandoned", name(),
              std::chrono::duration<double>(limits_.close).count());
  }
  for (std::thread& thread : threads_) have_ended ? thread.join() : thread.detach();
  threads_.clear();
}

namespace {

/// The owner of a store, for its stage.
class StoreHandle final : public PageStore {
 public:
  explicit StoreHandle(std::shared_ptr<QueuedStore> store) : store_(std::move(store)) {}
  ~StoreHandle() override { store_->close(); }

  [[nodiscard]] asio::awaitable<bool> get(PageKey key, std::span<std::byte> into) override {
    return store_->run(StoreOp::Kind::kGet, key, into, {});
  }
  [[nodiscard]] asio::awaitable<bool> put(PageKey key, std::span<const std::byte> page) override {
    return store_->run(StoreOp::Kind::kPut, key, {}, page);
  }
  [[nodiscard]] asio::awaitable<bool> exists(PageKey key) override {
    return store_->run(StoreOp::Kind::kExists, key, {}, {});
  }
  void give_up() override { store_->give_up(); }
  [[nodiscard]] StoreStats stats() const override { return store_->stats(); }

 private:
  const std::shared_ptr<QueuedStore> store_;
};

}  // namespace

std::unique_ptr<PageStore> make_page_store(std::shared_ptr<QueuedStore> store) {
  return std::make_unique<StoreHandle>(std::move(store));
}

}  // namespace millrace::cache
