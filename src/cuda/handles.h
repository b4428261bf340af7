#pragma once

#include <cuda_runtime_api.h>

#include <mutex>
#include <vector>

/// Owners of the runtime's handles. Each is made while its device is current.
namespace millrace::cuda {

class Partition;

/// Options of a stream.
struct StreamOptions {
  bool urgent = false;                   ///< blocks of its kernels precede waiting blocks of other streams
  const Partition* partition = nullptr;  ///< where its kernels run; null: everywhere
};

/// A stream that does not synchronise with others.
class Stream {
 public:
  explicit Stream(const StreamOptions& options = {});
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  [[nodiscard]] cudaStream_t get() const { return stream_; }
  /// Waits until all work so far is complete. For start-up and tests.
  void synchronize() const;

 private:
  cudaStream_t stream_ = nullptr;
};

/// An event without timing.
class Event {
 public:
  Event();
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  [[nodiscard]] cudaEvent_t get() const { return event_; }
  void record(const Stream& stream) const;

 private:
  cudaEvent_t event_ = nullptr;
};

/// Events for reuse, since creating one takes the driver's lock. Thread-safe.
class EventPool {
 public:
  explicit EventPool(size_t count) : free_(count) {}
  [[nodiscard]] Event take();
  void give_back(Event event);

 private:
  std::mutex mutex_;
  std::vector<Event> free_;
};

}  // namespace millrace::cuda
