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

/// The objects behind the runtime's opaque handles. Threads synchronise from the host to the stream when work is
/// submitted, and back only through a Signal. The thread sanitizer thus sees no order that a device would not give.
namespace millrace::emulator {

/// A flag that a stream's thread sets once.
class Signal {
 public:
  void set(cudaError_t outcome);
  /// Returns cudaErrorNotReady until it is set.
  [[nodiscard]] cudaError_t query() const;
  [[nodiscard]] cudaError_t wait() const;
  /// Waits for a while, and returns what query() then does.
  [[nodiscard]] cudaError_t wait(std::chrono::microseconds most) const;
  /// Returns when it was set.
  [[nodiscard]] std::chrono::steady_clock::time_point time() const { return time_; }

 private:
  std::chrono::steady_clock::time_point time_;  // written before the outcome
  std::atomic<uint32_t> outcome_{cudaErrorNotReady};
};

using Work = std::function<void()>;
using WorkList = std::vector<Work>;

/// Returns whether the calling thread is capturing a stream.
[[nodiscard]] bool thread_captures();
/// Invalidates the graphs that this thread captures, after a call that is forbidden meanwhile.
void spoil_captures();

/// The random delays of work.
struct Delays {
  std::atomic<uint64_t> seed{0};
  std::atomic<int64_t> max_us{0};
};
extern Delays delays;

}  // namespace millrace::emulator

/// A stream: work runs in order on its thread.
struct CUstream_st {
 public:
  explicit CUstream_st(int its_device);
  ~CUstream_st();
  /// Runs `work` later, or adds it to the graph being captured.
  void enqueue(millrace::emulator::Work work);
  [[nodiscard]] bool capturing() const { return captured_ != nullptr; }
  void begin_capture();
  /// Ends the capture. Returns null when it was invalidated.
  [[nodiscard]] std::unique_ptr<millrace::emulator::WorkList> end_capture();
  void spoil_capture() { spoilt_ = true; }
  /// Returns whether the capture in progress was invalidated.
  [[nodiscard]] bool spoilt() const { return spoilt_; }
  [[nodiscard]] std::thread::id capturer() const { return capturer_; }
  [[nodiscard]] uint64_t capture_number() const { return capture_number_; }
  /// Returns a signal that is set when all work so far has run.
  [[nodiscard]] std::shared_ptr<millrace::emulator::Signal> mark();

  const int device;

 private:
  struct Task {
    millrace::emulator::Work work;
    std::atomic<Task*> next{nullptr};
  };
  /// Returns the task after one that is done.
  [[nodiscard]] Task* next_task(const Task& done);

  std::mutex submit_mutex_;  // among submitters; the stream's thread never takes it
  Task* newest_;             // guarded by submit_mutex_
  std::atomic<uint32_t> submitted_{0};
  std::atomic<bool> sleeps_{false};  // the stream's thread; read without order
  // State of the thread that captures.
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
