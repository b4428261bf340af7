#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "async/event.h"
#include "cache/store/page_record.h"
#include "cache/store/page_store.h"

namespace millrace::cache {

/// A get, put or exists on its way through a worker. The spans belong to the caller, who waits for `done`.
struct StoreOp {
  enum class Kind { kGet, kPut, kExists };
  Kind kind;
  PageKey key;
  std::span<std::byte> into;        // [page_bytes], of a get
  std::span<const std::byte> page;  // [page_bytes], of a put
  async::Event done;
  bool ok = false;  // written before `done` is set, read after
};
using StoreOpPtr = std::shared_ptr<StoreOp>;

/// The queue from the Runtime's thread to the workers that serve it. A full queue refuses.
class StoreQueue {
 public:
  explicit StoreQueue(size_t capacity);
  ~StoreQueue();
  StoreQueue(const StoreQueue&) = delete;
  StoreQueue& operator=(const StoreQueue&) = delete;

  /// Adds an operation. False when full or closed.
  [[nodiscard]] bool try_push(StoreOpPtr op);
  /// Takes the oldest operation; null when empty or closed.
  [[nodiscard]] StoreOpPtr try_pop();
  /// Takes up to `most` operations, but no more than one worker's share of what waits for `workers`.
  [[nodiscard]] std::vector<StoreOpPtr> try_pop_batch(size_t most, size_t workers);
  /// Returns a descriptor that is readable while there are tokens: one per push, and one per worker after close().
  [[nodiscard]] int wake_descriptor() const { return wake_; }
  /// Takes one token; false when none came within `timeout_ms` (negative: waits for ever).
  bool wait(int timeout_ms);
  /// Wakes `workers` workers and returns what nobody will pop.
  [[nodiscard]] std::vector<StoreOpPtr> close(size_t workers);
  [[nodiscard]] bool closed() const { return closed_.load(); }

 private:
  const size_t capacity_;
  const int wake_;
  std::atomic<bool> closed_{false};
  std::mutex mutex_;
  std::deque<StoreOpPtr> waiting_;
};

struct StoreCounters {
  std::atomic<uint64_t> hits{0}, misses{0}, corrupt{0}, foreign{0}, refused{0}, written{0}, already_there{0},
      evicted{0}, errors{0}, bytes_read{0}, bytes_written{0};
  [[nodiscard]] StoreStats snapshot() const;
};

/// The common part of stores with worker threads: the Runtime's side of every operation, and the counting. Reads and
/// puts have workers of their own, since somebody waits for a read and a put may take long. A derived class owns the
/// workers, which pop and finish(); it closes the queues and joins them in its destructor.
class QueuedStore : public PageStore {
 public:
  /// The number of gets and probes that may wait; puts are fewer, because they hold their caller's pages.
  static constexpr size_t kMaxQueuedReads = 65536;

  QueuedStore(async::Runtime& runtime, const StoreIdentity& identity, size_t max_queued_puts);

  [[nodiscard]] asio::awaitable<bool> get(PageKey key, std::span<std::byte> into) final;
  [[nodiscard]] asio::awaitable<bool> put(PageKey key, std::span<const std::byte> page) final;
  [[nodiscard]] asio::awaitable<bool> exists(PageKey key) final;
  [[nodiscard]] StoreStats stats() const override { return counters_.snapshot(); }

 protected:
  /// Counts the outcome and lets the caller go on; called on a worker.
  void finish(const StoreOpPtr& op, bool ok);
  /// Ends the queues, each with so many workers; what waited is answered with false.
  void close_queues(size_t workers);

  const RecordFormat format_;
  StoreQueue read_queue_{kMaxQueuedReads};  // gets and exists
  StoreQueue put_queue_;
  StoreCounters counters_;
  std::atomic<bool> unavailable_{false};  // answers at once, without the workers

 private:
  [[nodiscard]] asio::awaitable<bool> run(StoreOp op);
  void count(const StoreOp& op, bool ok);

  async::Runtime& runtime_;
};

}  // namespace millrace::cache
