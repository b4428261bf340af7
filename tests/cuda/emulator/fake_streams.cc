// Streams, events, copies and graphs of the fake runtime.

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "cuda/emulator/fake_memory.h"
#include "cuda/emulator/fake_state.h"

namespace millrace::emulator {
namespace {

constexpr int kMinPriority = 0;
constexpr int kGreatestPriority = -5;

cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  MemoryKind source{};
  MemoryKind target{};
  if (!find_memory_kind(from, bytes, source) || !find_memory_kind(to, bytes, target)) return cudaErrorInvalidValue;
  const bool pageable = source == MemoryKind::kPageable || target == MemoryKind::kPageable;
  if (pageable && stream->capturing()) {
    stream->spoil_capture();
    return cudaErrorStreamCaptureUnsupported;
  }
  ++state().copies;
  if (source == MemoryKind::kPageable) {
    // The runtime has read pageable memory when the call returns.
    const auto* begin = static_cast<const std::byte*>(from);
    stream->enqueue(
        [to, bytes = std::vector<std::byte>(begin, begin + bytes)] { std::memcpy(to, bytes.data(), bytes.size()); });
  } else {
    stream->enqueue([to, from, bytes] { std::memcpy(to, from, bytes); });
  }
  if (target != MemoryKind::kPageable) return cudaSuccess;
  ++state().synchronisations;
  return stream->mark()->wait();
}

}  // namespace

CUstream_st* make_stream(int device) {
  ++state().creations;
  auto* const stream = new CUstream_st(device);
  const std::lock_guard lock(state().streams_mutex);
  state().streams.insert(stream);
  return stream;
}

}  // namespace millrace::emulator

using namespace millrace::emulator;

extern "C" {

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = kMinPriority;
  *greatest = kGreatestPriority;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  if (const cudaError_t error = before_other(); error != cudaSuccess) return returned(error);
  const bool known = priority <= kMinPriority && priority >= kGreatestPriority;
  if (flags != cudaStreamNonBlocking || !known) return returned(cudaErrorInvalidValue);
  *stream = make_stream(current_device());
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::lock_guard lock(state().streams_mutex);
    state().streams.erase(stream);
    state().divided.erase(stream);
  }
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t error = before_other(); error != cudaSuccess) return returned(error);
  ++state().synchronisations;
  return returned(stream->mark()->wait());
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  if (const cudaError_t error = before_work(stream); error != cudaSuccess) return returned(error);
  const std::lock_guard lock(event->mutex);
  const uint64_t capture = stream->capturing() ? stream->capture_number() : 0;
  if (event->capture_number != capture) {
    // A graph waits for nothing outside of itself; and no stream here joins the capture of another.
    if (capture != 0) stream->spoil_capture();
    return returned(cudaErrorStreamCaptureIsolation);
  }
  if (event->signal) stream->enqueue([signal = event->signal] { (void)signal->wait(); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  const bool timed = (flags & cudaEventDisableTiming) == 0;
  ++state().creations;
  if (timed) ++state().timed_events;
  *event = new CUevent_st(current_device(), timed);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t error = before_work(stream); error != cudaSuccess) return returned(error);
  if (event->device != stream->device) return returned(cudaErrorInvalidResourceHandle);
  if (stream->capturing()) {
    const std::lock_guard lock(event->mutex);
    event->signal = nullptr;
    event->capture_number = stream->capture_number();
    return cudaSuccess;
  }
  auto signal = std::make_shared<Signal>();
  const cudaError_t outcome = is_nth(state().events_to_failure) ? cudaErrorIllegalAddress : cudaSuccess;
  stream->enqueue([signal, outcome, sticks = state().event_failure_sticks.load()] {
    if (outcome != cudaSuccess && sticks) state().stuck = outcome;
    signal->set(outcome);
  });
  const std::lock_guard lock(event->mutex);
  event->signal = std::move(signal);
  event->capture_number = 0;
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (state().stuck != cudaSuccess) return returned(static_cast<cudaError_t>(state().stuck.load()));
  std::shared_ptr<Signal> signal;
  {
    const std::lock_guard lock(event->mutex);
    if (event->capture_number != 0) return returned(cudaErrorCapturedEvent);
    signal = event->signal;
  }
  // Emulated work is long, and whoever asks again and again would take its processor.
  constexpr std::chrono::microseconds kPatience(200);
  return returned(signal ? signal->wait(kPatience) : cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t error = before_other(); error != cudaSuccess) return returned(error);
  ++state().synchronisations;
  std::shared_ptr<Signal> signal;
  {
    const std::lock_guard lock(event->mutex);
    if (event->capture_number != 0) return returned(cudaErrorCapturedEvent);
    signal = event->signal;
  }
  return returned(signal ? signal->wait() : cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  std::chrono::steady_clock::time_point times[2];
  cudaEvent_t const events[] = {begin, end};
  for (int i = 0; i < 2; ++i) {
    const std::lock_guard lock(events[i]->mutex);
    if (!events[i]->timed || events[i]->signal == nullptr) return returned(cudaErrorInvalidResourceHandle);
    if (const cudaError_t outcome = events[i]->signal->query(); outcome != cudaSuccess) return returned(outcome);
    times[i] = events[i]->signal->time();
  }
  *milliseconds = std::chrono::duration<float, std::milli>(times[1] - times[0]).count();
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  if (const cudaError_t error = before_work(stream); error != cudaSuccess) return returned(error);
  MemoryKind source{};
  MemoryKind target{};
  const bool sensible = kind == cudaMemcpyDeviceToDevice && width > 0 && height > 0 && width <= to_pitch &&
                        width <= from_pitch && find_memory_kind(from, from_pitch * (height - 1) + width, source) &&
                        find_memory_kind(to, to_pitch * (height - 1) + width, target);
  if (!sensible || source != MemoryKind::kDevice || target != MemoryKind::kDevice) {
    return returned(cudaErrorInvalidValue);
  }
  ++state().copies;
  stream->enqueue([=] {
    for (size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<std::byte*>(to) + row * to_pitch, static_cast<const std::byte*>(from) + row * from_pitch,
                  width);
    }
  });
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (const cudaError_t error = before_work(stream); error != cudaSuccess) return returned(error);
  if (kind != cudaMemcpyDefault) return returned(cudaErrorInvalidMemcpyDirection);  // addresses say the direction
  return returned(copy(to, from, bytes, stream));
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error = before_work(stream); error != cudaSuccess) return returned(error);
  MemoryKind kind{};
  if (!find_memory_kind(data, bytes, kind) || kind != MemoryKind::kDevice) return returned(cudaErrorInvalidValue);
  stream->enqueue([data, value, bytes] { std::memset(data, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (const cudaError_t error = before_work(stream); error != cudaSuccess) return returned(error);
  if (mode != cudaStreamCaptureModeThreadLocal || stream->capturing()) return returned(cudaErrorIllegalState);
  if (state().graphs_refused) return returned(cudaErrorNotSupported);
  if (const cudaError_t error = before_graph_call(); error != cudaSuccess) return returned(error);
  ++state().captures;
  stream->begin_capture();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (!stream->capturing()) return returned(cudaErrorIllegalState);
  if (stream->capturer() != std::this_thread::get_id()) return returned(cudaErrorStreamCaptureWrongThread);
  auto work = stream->end_capture();
  if (work == nullptr) return returned(cudaErrorStreamCaptureInvalidated);
  if (const cudaError_t error = before_graph_call(); error != cudaSuccess) return returned(error);
  ++state().creations;
  ++state().live_graphs;
  *graph = new CUgraph_st{std::move(work)};
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  if (const cudaError_t error = before_other(); error != cudaSuccess) return returned(error);
  if (graph == nullptr) return returned(cudaErrorInvalidValue);
  if (const cudaError_t error = before_graph_call(); error != cudaSuccess) return returned(error);
  ++state().creations;
  ++state().live_graphs;
  *executable = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  if (const cudaError_t error = before_work(stream); error != cudaSuccess) return returned(error);
  if (executable == nullptr || stream->capturing()) return returned(cudaErrorInvalidValue);
  return returned(before_graph_call());
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (const cudaError_t error = before_work(stream); error != cudaSuccess) return returned(error);
  if (state().graph_launch_sticks) {
    state().stuck = cudaErrorIllegalAddress;
    return returned(cudaErrorIllegalAddress);
  }
  const bool fails = is_nth(state().graph_launches_to_failure);
  const size_t count = fails ? state().begun_of_failed_graph.load() : executable->work->size();
  stream->enqueue([work = executable->work, count] {
    for (const Work& each : std::span(*work).first(std::min(count, work->size()))) each();
  });
  if (fails) return returned(cudaErrorMemoryAllocation);
  ++state().graph_launches;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  --state().live_graphs;
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  --state().live_graphs;
  delete executable;
  return cudaSuccess;
}

}  // extern "C"
