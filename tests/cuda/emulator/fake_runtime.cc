#include "cuda/emulator/fake_runtime.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <stdexcept>
#include <utility>

#include "cuda/emulator/emulator.h"
#include "cuda/emulator/fake_memory.h"
#include "cuda/emulator/fake_stream.h"

namespace millrace::emulator {
namespace {

/// What a process starts with, where no test can call in: MILLRACE_EMULATED_GPUS, the first one's serial number in
/// MILLRACE_EMULATED_FIRST_SERIAL, and MILLRACE_EMULATED_FAILING_CALL and …_EVENT for fail_call and fail_event.
int initial(const char* name, int otherwise) {
  const char* given = std::getenv(name);
  return given == nullptr ? otherwise : std::atoi(given);
}

struct State {
  std::atomic<uint64_t> allocations{0}, creations{0}, synchronisations{0}, launches{0}, copies{0}, graph_launches{0};
  // 0: none is to fail
  std::atomic<int64_t> calls_to_failure{initial("MILLRACE_EMULATED_FAILING_CALL", 0)};
  std::atomic<int64_t> events_to_failure{initial("MILLRACE_EMULATED_FAILING_EVENT", 0)};
  std::atomic<bool> event_failure_sticks{false};
  std::atomic<int> stuck{cudaSuccess};
  std::atomic<int> device_count{initial("MILLRACE_EMULATED_GPUS", 1)};
  std::mutex streams_mutex;
  std::set<CUstream_st*> streams;
};

// Never destroyed: threads of streams may outlive main.
State& state() {
  static auto* const kept = new State;
  return *kept;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;

cudaError_t returned(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

bool is_nth(std::atomic<int64_t>& countdown) {
  return countdown.load() > 0 && countdown.fetch_sub(1) == 1;
}

/// What a call that brings work to a stream ends in before it does anything.
cudaError_t before_work(cudaStream_t stream) {
  if (state().stuck != cudaSuccess) return static_cast<cudaError_t>(state().stuck.load());
  if (stream == nullptr) return cudaErrorInvalidValue;  // the code under test uses streams of its own only
  return is_nth(state().calls_to_failure) ? cudaErrorLaunchOutOfResources : cudaSuccess;
}

/// The same for calls that must not happen while this thread captures.
cudaError_t before_other() {
  if (state().stuck != cudaSuccess) return static_cast<cudaError_t>(state().stuck.load());
  return thread_captures() ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

void wait_for_all_streams() {
  std::vector<std::shared_ptr<Signal>> signals;
  {
    const std::lock_guard lock(state().streams_mutex);
    for (CUstream_st* stream : state().streams) {
      if (!stream->capturing()) signals.push_back(stream->mark());
    }
  }
  for (const auto& signal : signals) (void)signal->wait();
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  Place source{};
  Place target{};
  if (!find_place(from, bytes, source) || !find_place(to, bytes, target)) return cudaErrorInvalidValue;
  const bool pageable = source == Place::kPageable || target == Place::kPageable;
  if (pageable && stream->capturing()) return cudaErrorStreamCaptureUnsupported;
  ++state().copies;
  if (source == Place::kPageable) {
    // The runtime has read pageable memory when the call returns.
    const auto* begin = static_cast<const std::byte*>(from);
    stream->enqueue(
        [to, bytes = std::vector<std::byte>(begin, begin + bytes)] { std::memcpy(to, bytes.data(), bytes.size()); });
  } else {
    stream->enqueue([to, from, bytes] { std::memcpy(to, from, bytes); });
  }
  if (target != Place::kPageable) return cudaSuccess;
  ++state().synchronisations;
  return stream->mark()->wait();
}

}  // namespace

Counts counts() {
  State& all = state();
  return {all.allocations, all.creations, all.synchronisations, all.launches, all.copies, all.graph_launches};
}

void reset() {
  State& all = state();
  for (auto* counter :
       {&all.allocations, &all.creations, &all.synchronisations, &all.launches, &all.copies, &all.graph_launches}) {
    *counter = 0;
  }
  all.calls_to_failure = 0;
  all.events_to_failure = 0;
  all.stuck = cudaSuccess;
  delays.most_us = 0;
}

void delay_randomly(uint64_t seed, std::chrono::microseconds most) {
  delays.seed = seed;
  delays.most_us = most.count();
}

void fail_call(uint64_t nth) {
  state().calls_to_failure = static_cast<int64_t>(nth);
}

void fail_event(uint64_t nth, bool sticks) {
  state().event_failure_sticks = sticks;
  state().events_to_failure = static_cast<int64_t>(nth);
}

void set_device_count(int count) {
  state().device_count = count;
}

void emulated_enqueue(cudaStream_t stream, std::function<void()> work) {
  const cudaError_t error = before_work(stream);
  if (error != cudaSuccess) throw std::runtime_error(std::string("a launch: ") + cudaGetErrorString(error));
  ++state().launches;
  stream->enqueue([work = std::move(work)] {
    try {
      work();
    } catch (const std::exception& fault) {
      std::fprintf(stderr, "emulated GPU: %s\n", fault.what());
      state().stuck = cudaErrorLaunchFailure;
    }
  });
}

}  // namespace millrace::emulator

using namespace millrace::emulator;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = state().device_count;
  return returned(*count == 0 ? cudaErrorInsufficientDriver : cudaSuccess);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= state().device_count) return returned(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "Emulated GPU");
  const int serial = initial("MILLRACE_EMULATED_FIRST_SERIAL", 0) + device;
  std::memcpy(properties->uuid.bytes, &serial, sizeof(serial));
  properties->major = 9;
  properties->minor = 0;
  properties->multiProcessorCount = 4;
  properties->totalGlobalMem = device_bytes();
  properties->sharedMemPerBlockOptin = 232448;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = state().device_count == 0 ? 0 : CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= state().device_count) return returned(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = free_bytes(current_device);
  *total = device_bytes();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  if (const cudaError_t error = before_other(); error != cudaSuccess) return returned(error);
  ++state().allocations;
  *data = allocate_device(current_device, bytes);
  return returned(*data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFree(void* data) {
  ++state().allocations;
  ++state().synchronisations;
  wait_for_all_streams();
  return returned(release(data, Place::kDevice) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned int) {
  if (const cudaError_t error = before_other(); error != cudaSuccess) return returned(error);
  ++state().allocations;
  *data = allocate_pinned(bytes);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
  ++state().allocations;
  ++state().synchronisations;
  wait_for_all_streams();
  return returned(release(data, Place::kPinned) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  if (const cudaError_t error = before_other(); error != cudaSuccess) return returned(error);
  ++state().creations;
  *stream = new CUstream_st;
  const std::lock_guard lock(state().streams_mutex);
  state().streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::lock_guard lock(state().streams_mutex);
    state().streams.erase(stream);
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
  if (event->signal) stream->enqueue([signal = event->signal] { (void)signal->wait(); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  if ((flags & cudaEventDisableTiming) == 0) return returned(cudaErrorInvalidValue);  // none here measures time
  ++state().creations;
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t error = before_work(stream); error != cudaSuccess) return returned(error);
  auto signal = std::make_shared<Signal>();
  const cudaError_t outcome = is_nth(state().events_to_failure) ? cudaErrorIllegalAddress : cudaSuccess;
  stream->enqueue([signal, outcome, sticks = state().event_failure_sticks.load()] {
    if (outcome != cudaSuccess && sticks) state().stuck = outcome;
    signal->set(outcome);
  });
  const std::lock_guard lock(event->mutex);
  event->signal = std::move(signal);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (state().stuck != cudaSuccess) return returned(static_cast<cudaError_t>(state().stuck.load()));
  const std::lock_guard lock(event->mutex);
  return returned(event->signal ? event->signal->query() : cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t error = before_other(); error != cudaSuccess) return returned(error);
  ++state().synchronisations;
  std::shared_ptr<Signal> signal;
  {
    const std::lock_guard lock(event->mutex);
    signal = event->signal;
  }
  return returned(signal ? signal->wait() : cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (const cudaError_t error = before_work(stream); error != cudaSuccess) return returned(error);
  if (kind != cudaMemcpyDefault) return returned(cudaErrorInvalidMemcpyDirection);  // addresses say the direction
  return returned(copy(to, from, bytes, stream));
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error = before_work(stream); error != cudaSuccess) return returned(error);
  Place place{};
  if (!find_place(data, bytes, place) || place != Place::kDevice) return returned(cudaErrorInvalidValue);
  stream->enqueue([data, value, bytes] { std::memset(data, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (const cudaError_t error = before_work(stream); error != cudaSuccess) return returned(error);
  if (mode != cudaStreamCaptureModeThreadLocal || stream->capturing()) return returned(cudaErrorIllegalState);
  stream->begin_capture();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (!stream->capturing()) return returned(cudaErrorIllegalState);
  ++state().creations;
  *graph = new CUgraph_st{stream->end_capture()};
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  if (const cudaError_t error = before_other(); error != cudaSuccess) return returned(error);
  ++state().creations;
  *executable = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (const cudaError_t error = before_work(stream); error != cudaSuccess) return returned(error);
  ++state().graph_launches;
  stream->enqueue([work = executable->work] {
    for (const Work& each : *work) each();
  });
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorLaunchOutOfResources: return "too many resources requested for launch";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    default: return "another error";
  }
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorLaunchOutOfResources: return "cudaErrorLaunchOutOfResources";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    default: return "cudaErrorUnknown";
  }
}

}  // extern "C"
