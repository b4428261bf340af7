#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

/// What the opaque handles of the runtime stand for. Threads synchronise from the host to the stream when work is
/// submitted, and back only through a Signal, so that the thread sanitizer sees no order which a device would not give.
namespace millrace::emulator {

/// Set once by a stream's thread.
class Signal {
 public:
  void set(cudaError_t outcome);
  /// cudaErrorNotReady until it is set.
  [[nodiscard]] cudaError_t query() const;
  [[nodiscard]] cudaError_t wait() const;
  /// When it was set.
  [[nodiscard]] std::chrono::steady_clock::time_point time() const { return time_; }

 private:
  std::chrono::steady_clock::time_point time_;  // written before the outcome
  std::atomic<uint32_t> outcome_{cudaErrorNotReady};
};

using Work = std::function<void()>;
using WorkList = std::vector<Work>;

/// Whether the calling thread is capturing a stream.
[[nodiscard]] bool thread_captures();
/// A call that may not happen meanwhile has happened: the graphs that this thread captures are of no use.
void spoil_captures();

/// How long work waits before it runs.
struct Delays {
  std::atomic<uint64_t> seed{0};
  std::atomic<int64_t> most_us{0};
};
extern Delays delays;

}  // namespace millrace::emulator

/// A stream: work runs in order on its thread.
struct CUstream_st {
 public:
  explicit CUstream_st(int its_device);
  ~CUstream_st();
  /// Runs `work` later, or adds it to the graph that is being captured.
  void enqueue(millrace::emulator::Work work);
  [[nodiscard]] bool capturing() const { return captured_ != nullptr; }
  void begin_capture();
  /// Null: the capture was spoilt.
  [[nodiscard]] std::unique_ptr<millrace::emulator::WorkList> end_capture();
  void spoil_capture() { spoilt_ = true; }
  /// Of the capture under way, while it is.
  [[nodiscard]] bool spoilt() const { return spoilt_; }
  [[nodiscard]] std::thread::id capturer() const { return capturer_; }
  [[nodiscard]] uint64_t capture_number() const { return capture_number_; }
  /// Set when all work so far has run.
  [[nodiscard]] std::shared_ptr<millrace::emulator::Signal> mark();

  const int device;

 private:
  struct Task {
    millrace::emulator::Work work;
    std::atomic<Task*> next{nullptr};
  };
  void run_tasks(uint64_t number);

  std::mutex submit_mutex_;  // among submitters; the stream's thread never takes it
  Task* newest_;             // guarded by submit_mutex_
  std::atomic<uint32_t> submitted_{0};
  // Of the thread that captures.
  std::unique_ptr<millrace::emulator::WorkList> captured_;
  std::thread::id capturer_;
  uint64_t capture_number_ = 0;
  bool spoilt_ = false;
  std::thread thread_;
};

struct CUevent_st {
  CUevent_st(int its_device, bool its_timing) : device(its_device), timed(its_timing) {}
  const int device;
  const bool timed;
  std::mutex mutex;
  std::shared_ptr<millrace::emulator::Signal> signal;  // of the last record; null: none, or a captured one
  uint64_t capture_number = 0;                         // of the graph that the last record is a part of; 0: of none
};

struct CUgraph_st {
  std::shared_ptr<const millrace::emulator::WorkList> work;
};

struct CUgraphExec_st {
  std::shared_ptr<const millrace::emulator::WorkList> work;
};
