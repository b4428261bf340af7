#include "cuda/handles.h"

#include <utility>

#include "cuda/error.h"
#include "cuda/partition.h"

namespace millrace::cuda {

Stream::Stream(const StreamOptions& options) {
  int least = 0;
  int greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  const int priority = options.urgent ? greatest : least;
  if (options.partition != nullptr) {
    stream_ = options.partition->make_stream(priority);
  } else {
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority), "cudaStreamCreate");
  }
}
Stream::~Stream() {
  (void)cudaStreamDestroy(stream_);
}
void Stream::synchronize() const {
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

Event::Event() {
  check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
}
Event::~Event() {
  if (event_ != nullptr) (void)cudaEventDestroy(event_);
}
Event::Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
Event& Event::operator=(Event&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}
void Event::record(const Stream& stream) const {
  check(cudaEventRecord(event_, stream.get()), "cudaEventRecord");
}

Event EventPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      Event event = std::move(free_.back());
      free_.pop_back();
      return event;
    }
  }
  return {};
}

void EventPool::give_back(Event event) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(event));
}

}  // namespace millrace::cuda
