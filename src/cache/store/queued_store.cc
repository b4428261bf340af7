#include "cache/store/queued_store.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "base/check.h"

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

QueuedStore::QueuedStore(async::Runtime& runtime, const StoreIdentity& identity, size_t max_queued_puts)
    : format_(identity), put_queue_(max_queued_puts), runtime_(runtime) {}

asio::awaitable<bool> QueuedStore::get(PageKey key, std::span<std::byte> into) {
  CHECK(into.size() == format_.page_bytes(), "a buffer of {} bytes for a page of {}", into.size(),
        format_.page_bytes());
  return run({StoreOp::Kind::kGet, key, into, {}, async::Event(runtime_)});
}

asio::awaitable<bool> QueuedStore::put(PageKey key, std::span<const std::byte> page) {
  CHECK(page.size() == format_.page_bytes(), "{} bytes for a page of {}", page.size(), format_.page_bytes());
  return run({StoreOp::Kind::kPut, key, {}, page, async::Event(runtime_)});
}

asio::awaitable<bool> QueuedStore::exists(PageKey key) {
  return run({StoreOp::Kind::kExists, key, {}, {}, async::Event(runtime_)});
}

asio::awaitable<bool> QueuedStore::run(StoreOp op) {
  const auto shared = std::make_shared<StoreOp>(std::move(op));
  StoreQueue& queue = shared->kind == StoreOp::Kind::kPut ? put_queue_ : read_queue_;
  if (unavailable_.load() || !queue.try_push(shared)) {
    count(*shared, false);
    co_return false;
  }
  // The store may end before this resumes: from here on only `shared` is touched.
  co_await shared->done.wait_uncancelled();
  co_return shared->ok;
}

void QueuedStore::count(const StoreOp& op, bool ok) {
  if (op.kind == StoreOp::Kind::kPut && !ok) ++counters_.refused;
  if (op.kind != StoreOp::Kind::kGet) return;
  ++(ok ? counters_.hits : counters_.misses);
  if (ok) counters_.bytes_read += format_.page_bytes();
}

void QueuedStore::finish(const StoreOpPtr& op, bool ok) {
  count(*op, ok);
  op->ok = ok;
  op->done.set();
}

void QueuedStore::close_queues(size_t workers) {
  for (StoreQueue* queue : {&read_queue_, &put_queue_}) {
    for (const StoreOpPtr& op : queue->close(workers)) finish(op, false);
  }
}

}  // namespace millrace::cache
