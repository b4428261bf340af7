#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "cache/store/page_record.h"
#include "cache/store/page_store.h"
#include "cache/store/store_log.h"
#include "cache/store/store_op.h"

namespace millrace::cache {

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
  /// Wakes `workers` workers and returns the operations that no worker will pop.
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

/// The common part of stores with worker threads: the Runtime's side of every operation, the counting, and the threads.
/// Reads and puts have workers of their own, since somebody waits for a read and a put may take long. Every thread
/// shares the store, so that a thread whose I/O hangs for ever can be abandoned.
class QueuedStore : public std::enable_shared_from_this<QueuedStore> {
 public:
  /// The number of gets and probes that may wait; puts are fewer, because they hold their caller's pages.
  static constexpr size_t kMaxQueuedReads = 65536;

  QueuedStore(async::Runtime& runtime, const StoreIdentity& identity, size_t max_queued_puts,
              const StoreTimeLimits& limits);
  virtual ~QueuedStore() = default;
  QueuedStore(const QueuedStore&) = delete;
  QueuedStore& operator=(const QueuedStore&) = delete;

  /// Runs an operation, as PageStore says. The store stays alive until it has ended.
  [[nodiscard]] asio::awaitable<bool> run(StoreOp::Kind kind, PageKey key, std::span<std::byte> into,
                                          std::span<const std::byte> page);
  /// Ends all operations that a caller waits for with false. Their I/O goes on in buffers of its own.
  void give_up();
  /// Ends the queues and the threads, on the Runtime's thread. Threads that have not ended after the time limit are
  /// left behind.
  void close();
  [[nodiscard]] virtual StoreStats stats() const { return counters_.snapshot(); }

 protected:
  /// Returns the name of the store in log lines.
  [[nodiscard]] virtual std::string name() const = 0;
  /// Lets the threads that are no workers end.
  virtual void stop_keepers() = 0;
  void start_worker(const std::string& thread_name, std::function<void()> body);
  void start_keeper(const std::string& thread_name, std::function<void()> body);
  /// Prepares an operation that a worker has taken. False: it has ended, or there is no memory for it.
  [[nodiscard]] bool begin(const StoreOpPtr& op);
  /// Counts the outcome and lets the caller go on; called on a worker. Nothing happens if the operation has ended.
  void finish(const StoreOpPtr& op, bool ok);

  const RecordFormat format_;
  StoreQueue read_queue_{kMaxQueuedReads};  // gets and exists
  StoreQueue put_queue_;
  StoreCounters counters_;
  StoreLog log_;
  std::atomic<bool> unavailable_{false};  // answers at once, without the workers

 private:
  void start_thread(const std::string& thread_name, std::function<void()> body, size_t& running);
  [[nodiscard]] StoreQueue& queue_of(StoreOp::Kind kind) {
    return kind == StoreOp::Kind::kPut ? put_queue_ : read_queue_;
  }
  [[nodiscard]] bool push(const StoreOpPtr& op);
  void count(const StoreOp& op, bool ok);

  async::Runtime& runtime_;
  const StoreTimeLimits limits_;
  async::TimePoint silent_until_[2];  // of reads and puts: refuses them after one was given up
  std::mutex ops_mutex_;
  std::unordered_set<StoreOpPtr> ops_;  // that callers wait for; guarded by ops_mutex_
  std::vector<std::thread> threads_;
  std::mutex threads_mutex_;
  std::condition_variable thread_ended_;
  size_t running_workers_ = 0;  // guarded by threads_mutex_
  size_t running_keepers_ = 0;  // guarded by threads_mutex_
};

/// Returns the access of a stage to a store. Its destructor closes the store.
[[nodiscard]] std::unique_ptr<PageStore> make_page_store(std::shared_ptr<QueuedStore> store);

}  // namespace millrace::cache
