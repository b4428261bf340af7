#include "cache/store/page_index.h"

#include <algorithm>
#include <chrono>
#include <unordered_set>

#include "base/check.h"

namespace millrace::cache {
namespace {

/// Time that a page may be under way before its writer counts as dead.
constexpr int64_t kPendingTimeoutNs = 60'000'000'000;

}  // namespace

int64_t PageIndex::tick() {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  last_ns_ = std::max(last_ns_ + 1, int64_t{std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count()});
  return last_ns_;
}

int64_t PageIndex::now_ns() {
  const std::lock_guard lock(mutex_);
  return tick();
}

void PageIndex::upsert(const PageKey& key, uint64_t bytes, int64_t used_ns) {
  Entry& entry = pages_[key];
  by_use_.erase({entry.used_ns, key});
  set_aside_.erase({entry.used_ns, key});
  bytes_ += bytes - entry.bytes;
  if (std::exchange(entry.is_pending, false)) pending_bytes_ -= entry.bytes;
  entry.bytes = bytes;
  entry.used_ns = std::max(entry.used_ns, used_ns);
  by_use_.emplace(entry.used_ns, key);
}

void PageIndex::remove(Pages::iterator page) {
  by_use_.erase({page->second.used_ns, page->first});
  set_aside_.erase({page->second.used_ns, page->first});
  bytes_ -= page->second.bytes;
  if (page->second.is_pending) pending_bytes_ -= page->second.bytes;
  pages_.erase(page);
}

void PageIndex::use_now(const PageKey& key, uint64_t bytes) {
  upsert(key, bytes, tick());
  if (!std::exchange(pages_[key].touched, true)) touched_.push_back(key);
}

void PageIndex::touch(const PageKey& key, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  use_now(key, bytes);
}

void PageIndex::add(const StoredPage& page) {
  const std::lock_guard lock(mutex_);
  upsert(page.key, page.bytes, page.used_ns);
}

void PageIndex::forget(const PageKey& key) {
  const std::lock_guard lock(mutex_);
  if (const auto found = pages_.find(key); found != pages_.end()) remove(found);
}

void PageIndex::forget(const PageKey& key, int64_t at_ns) {
  const std::lock_guard lock(mutex_);
  const auto found = pages_.find(key);
  if (found != pages_.end() && found->second.used_ns <= at_ns) remove(found);
}

void PageIndex::add_pending(const StoredPage& page) {
  const std::lock_guard lock(mutex_);
  const auto [entry, is_new] = pages_.try_emplace(page.key, Entry{page.bytes, page.used_ns, false, true});
  if (!is_new) return;
  bytes_ += page.bytes;
  pending_bytes_ += page.bytes;
}

bool PageIndex::has_room() const {
  const std::lock_guard lock(mutex_);
  return reserved_ + pending_bytes_ <= max_bytes_;
}

bool PageIndex::try_reserve(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > max_bytes_ - reserved_) return false;
  reserved_ += bytes;
  return true;
}

void PageIndex::subtract(uint64_t bytes) {
  CHECK(bytes <= reserved_, "{} bytes given back, {} are reserved", bytes, reserved_);
  reserved_ -= bytes;
}

void PageIndex::release(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  subtract(bytes);
}

void PageIndex::commit(const PageKey& key, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  subtract(bytes);
  use_now(key, bytes);
}

bool PageIndex::fits(uint64_t other_bytes) const {
  const std::lock_guard lock(mutex_);
  return bytes_ + reserved_ + other_bytes <= max_bytes_;
}

std::optional<StoredPage> PageIndex::take_victim() {
  const std::lock_guard lock(mutex_);
  const UseOrder& order = by_use_.empty() ? set_aside_ : by_use_;
  if (bytes_ + reserved_ <= max_bytes_ || order.empty()) return std::nullopt;
  const auto found = pages_.find(order.begin()->second);
  const StoredPage victim{found->first, found->second.bytes, found->second.used_ns};
  remove(found);
  return victim;
}

void PageIndex::set_aside(const StoredPage& page) {
  const std::lock_guard lock(mutex_);
  upsert(page.key, page.bytes, page.used_ns);
  set_aside_.insert(by_use_.extract({pages_.at(page.key).used_ns, page.key}));
}

bool PageIndex::has_victims() const {
  const std::lock_guard lock(mutex_);
  return !by_use_.empty() || !set_aside_.empty();
}

std::vector<StoredPage> PageIndex::take_touched() {
  const std::lock_guard lock(mutex_);
  std::vector<StoredPage> uses;
  uses.reserve(touched_.size());
  for (const PageKey& key : std::exchange(touched_, {})) {
    const auto found = pages_.find(key);
    if (found == pages_.end() || !found->second.touched) continue;
    found->second.touched = false;
    uses.push_back({key, found->second.bytes, found->second.used_ns});
  }
  return uses;
}

void PageIndex::merge(std::span<const StoredPage> found, int64_t begin_ns) {
  std::unordered_set<PageKey> there;
  there.reserve(found.size());
  for (const StoredPage& page : found) there.insert(page.key);
  const std::lock_guard lock(mutex_);
  // What was used after the scan began may have been written without its notice.
  for (auto page = pages_.begin(); page != pages_.end();) {
    const auto next = std::next(page);
    const int64_t oldest_ns = page->second.is_pending ? begin_ns - kPendingTimeoutNs : begin_ns;
    if (page->second.used_ns < oldest_ns && !there.contains(page->first)) remove(page);
    page = next;
  }
  for (const StoredPage& page : found) upsert(page.key, page.bytes, page.used_ns);
}

size_t PageIndex::page_count() const {
  const std::lock_guard lock(mutex_);
  return pages_.size();
}

}  // namespace millrace::cache
