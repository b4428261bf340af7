#include "cuda/emulator/fake_runtime.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "cuda/emulator/emulator.h"
#include "cuda/emulator/fake_memory.h"
#include "cuda/emulator/fake_state.h"

namespace millrace::emulator {
namespace {

/// The minimum driver for a runtime with all features that the backend uses.
constexpr int kMinDriver = 12000;

thread_local cudaError_t last_error = cudaSuccess;
thread_local int device_of_thread = 0;

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

/// Returns the maximum shared memory of a kernel, from the CUDA programming guide's table of compute capabilities.
int shared_bytes_per_block() {
  const int capability = state().capability;
  if (capability == 80 || capability == 87) return 163 << 10;
  return capability == 86 || capability == 89 ? 99 << 10 : 227 << 10;
}

/// Waits for the device, which a capturing thread may not do. After a sticky error memory is freed all the same.
cudaError_t before_freeing() {
  if (!thread_captures()) return cudaSuccess;
  spoil_captures();
  return cudaErrorStreamCaptureUnsupported;
}

}  // namespace

// Never destroyed: threads of streams may outlive main.
State& state() {
  static auto* const kept = new State;
  return *kept;
}

cudaError_t returned(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

bool is_nth(std::atomic<int64_t>& countdown) {
  return countdown.load() > 0 && countdown.fetch_sub(1) == 1;
}

int current_device() {
  return device_of_thread;
}

cudaError_t before_work(cudaStream_t stream) {
  if (state().stuck != cudaSuccess) return static_cast<cudaError_t>(state().stuck.load());
  if (stream == nullptr) return cudaErrorInvalidValue;  // the code under test uses streams of its own only
  if (stream->capturing() && stream->spoilt()) return cudaErrorStreamCaptureInvalidated;
  cudaError_t outcome = is_nth(state().calls_to_failure) ? cudaErrorLaunchOutOfResources : cudaSuccess;
  if (stream->capturing() && outcome == cudaSuccess) outcome = before_graph_call();
  if (stream->capturing() && outcome != cudaSuccess) stream->spoil_capture();
  return outcome;
}

cudaError_t before_graph_call() {
  ++state().graph_calls;
  return is_nth(state().graph_calls_to_failure) ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t before_other() {
  if (state().stuck != cudaSuccess) return static_cast<cudaError_t>(state().stuck.load());
  if (!thread_captures()) return cudaSuccess;
  spoil_captures();
  return cudaErrorStreamCaptureUnsupported;
}

Counts counts() {
  State& all = state();
  return {all.allocations,    all.frees,           all.creations, all.synchronisations, all.launches,   all.copies,
          all.graph_launches, all.divided_streams, all.captures,  all.timed_events,     all.graph_calls};
}

int64_t live_graphs() {
  return state().live_graphs;
}

void reset() {
  State& all = state();
  for (auto* counter :
       {&all.allocations, &all.frees, &all.creations, &all.synchronisations, &all.launches, &all.copies,
        &all.graph_launches, &all.divided_streams, &all.captures, &all.timed_events, &all.graph_calls}) {
    *counter = 0;
  }
  all.calls_to_failure = 0;
  all.events_to_failure = 0;
  all.graph_calls_to_failure = 0;
  all.graph_launches_to_failure = 0;
  all.graphs_refused = false;
  all.graph_launch_sticks = false;
  all.stuck = cudaSuccess;
  delays.max_us = 0;
}

void delay_randomly(uint64_t seed, std::chrono::microseconds most) {
  delays.seed = seed;
  delays.max_us = most.count();
}

void fail_call(uint64_t nth) {
  state().calls_to_failure = static_cast<int64_t>(nth);
}

void fail_graph_call(uint64_t nth) {
  state().graph_calls_to_failure = static_cast<int64_t>(nth);
}

void fail_graph_launch(uint64_t nth, size_t begun) {
  state().begun_of_failed_graph = begun;
  state().graph_launches_to_failure = static_cast<int64_t>(nth);
}

void lose_device() {
  state().stuck = cudaErrorIllegalAddress;
}

void lose_device_at_graph_launch() {
  state().graph_launch_sticks = true;
}

void refuse_graphs() {
  state().graphs_refused = true;
}

void fail_event(uint64_t nth, bool sticks) {
  state().event_failure_sticks = sticks;
  state().events_to_failure = static_cast<int64_t>(nth);
}

void set_device_count(int count) {
  state().device_count = count;
}

void set_multiprocessors(int count) {
  state().multiprocessors = count;
}

void set_capability(int capability) {
  state().capability = capability;
}

void emulated_enqueue(cudaStream_t stream, std::function<void()> work) {
  cudaError_t error = before_work(stream);
  if (error == cudaSuccess && stream->device != current_device()) error = cudaErrorInvalidResourceHandle;
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
  const bool served = *count > 0 && state().driver_version >= kMinDriver;
  return returned(served ? cudaSuccess : cudaErrorInsufficientDriver);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= state().device_count) return returned(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "Emulated GPU");
  const int serial = initial("MILLRACE_EMULATED_FIRST_SERIAL", 0) + device;
  std::memcpy(properties->uuid.bytes, &serial, sizeof(serial));
  properties->major = state().capability / 10;
  properties->minor = state().capability % 10;
  properties->multiProcessorCount = state().multiprocessors;
  properties->totalGlobalMem = device_bytes();
  properties->sharedMemPerBlockOptin = static_cast<size_t>(shared_bytes_per_block());
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device < 0 || device >= state().device_count) return returned(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = shared_bytes_per_block(); return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: *value = state().capability / 10; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = state().capability % 10; return cudaSuccess;
    default: return returned(cudaErrorInvalidValue);
  }
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = state().device_count == 0 ? 0 : state().driver_version.load();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  static const int busy = initial("MILLRACE_EMULATED_BUSY_GPU", -1);
  if (device < 0 || device >= state().device_count) return returned(cudaErrorInvalidDevice);
  if (device == busy) return returned(cudaErrorDevicesUnavailable);
  device_of_thread = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = device_of_thread;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  if (state().stuck != cudaSuccess) return returned(static_cast<cudaError_t>(state().stuck.load()));
  *free = free_bytes(current_device());
  *total = device_bytes();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  if (const cudaError_t error = before_other(); error != cudaSuccess) return returned(error);
  ++state().allocations;
  *data = allocate_device(current_device(), bytes);
  return returned(*data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFree(void* data) {
  if (const cudaError_t error = before_freeing(); error != cudaSuccess) return returned(error);
  ++state().allocations;
  ++state().frees;
  ++state().synchronisations;
  wait_for_all_streams();
  return returned(release(data, MemoryKind::kDevice) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned int) {
  if (const cudaError_t error = before_other(); error != cudaSuccess) return returned(error);
  ++state().allocations;
  *data = allocate_pinned(bytes);
  return returned(*data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFreeHost(void* data) {
  if (const cudaError_t error = before_freeing(); error != cudaSuccess) return returned(error);
  ++state().allocations;
  ++state().frees;
  ++state().synchronisations;
  wait_for_all_streams();
  return returned(release(data, MemoryKind::kPinned) ? cudaSuccess : cudaErrorInvalidValue);
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
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureIsolation: return "dependency created on uncaptured work in another stream";
    case cudaErrorNotSupported: return "operation not supported";
    case cudaErrorDevicesUnavailable: return "CUDA-capable device(s) is/are busy or unavailable";
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
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    default: return "cudaErrorUnknown";
  }
}

}  // extern "C"
