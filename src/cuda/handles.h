#pragma once

#include <cuda_runtime_api.h>

#include <mutex>
#include <vector>

/// Owners of the runtime's handles. Each is made while its device is current.
namespace millrace::cuda {

class Partition;

struct StreamOptions {
  bool urgent = false;                   ///< its kernels' blocks go before those that wait on other streams
  const Partition* partition = nullptr;  ///< where its kernels run; null: everywhere
};

/// A stream that waits for no other one.
class Stream {
 public:
  explicit Stream(const StreamOptions& options = {});
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  [[nodiscard]] cudaStream_t get() const { return stream_; }
  /// Returns when everything so far is complete. At start-up and in tests only.
  void synchronize() const;

 private:
  cudaStream_t stream_ = nullptr;
};

/// An event that measures no time.
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

/// Events to be used again, since making one takes the driver's lock. Thread-safe.
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
