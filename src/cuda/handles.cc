#include "cuda/handles.h"

#include <utility>

#include "cuda/error.h"

namespace millrace::cuda {

Stream::Stream() {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
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
