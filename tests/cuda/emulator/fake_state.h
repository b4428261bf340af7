#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "cuda/emulator/fake_stream.h"

struct CUgreenCtx_st;

/// The state that the parts of the fake runtime share. Private to it.
namespace millrace::emulator {

/// Returns an initial setting from the environment, for processes that no test can call into. MILLRACE_EMULATED_GPUS
/// sets the number of GPUs and MILLRACE_EMULATED_FIRST_SERIAL the first one's serial number. MILLRACE_EMULATED_BUSY_GPU
/// names a GPU that another process occupies; MILLRACE_EMULATED_DRIVER sets the driver's version.
/// MILLRACE_EMULATED_FAILING_CALL and …_EVENT serve fail_call and fail_event, whose error sticks with
/// MILLRACE_EMULATED_FAILURE_STICKS=1. MILLRACE_EMULATED_REFUSED_GRAPHS=1 serves refuse_graphs.
inline int initial(const char* name, int otherwise) {
  const char* given = std::getenv(name);
  return given == nullptr ? otherwise : std::atoi(given);
}

struct State {
  std::atomic<uint64_t> allocations{0}, frees{0}, creations{0}, synchronisations{0}, launches{0}, copies{0},
      graph_launches{0}, divided_streams{0}, captures{0}, timed_events{0}, graph_calls{0};
  std::atomic<int64_t> live_graphs{0};
  // 0: none is to fail
  std::atomic<int64_t> calls_to_failure{initial("MILLRACE_EMULATED_FAILING_CALL", 0)};
  std::atomic<int64_t> events_to_failure{initial("MILLRACE_EMULATED_FAILING_EVENT", 0)};
  std::atomic<int64_t> graph_calls_to_failure{0}, graph_launches_to_failure{0};
  std::atomic<size_t> begun_of_failed_graph{0};
  std::atomic<bool> graphs_refused{initial("MILLRACE_EMULATED_REFUSED_GRAPHS", 0) != 0};
  std::atomic<bool> graph_launch_sticks{false};
  std::atomic<bool> event_failure_sticks{initial("MILLRACE_EMULATED_FAILURE_STICKS", 0) != 0};
  std::atomic<int> stuck{cudaSuccess};
  std::atomic<int> device_count{initial("MILLRACE_EMULATED_GPUS", 1)};
  std::atomic<int> capability{90};
  std::atomic<int> multiprocessors{4};
  std::atomic<int> driver_version{initial("MILLRACE_EMULATED_DRIVER", CUDART_VERSION)};
  std::mutex streams_mutex;
  std::set<CUstream_st*> streams;                  // guarded by streams_mutex, as the next
  std::map<CUstream_st*, CUgreenCtx_st*> divided;  // streams of a part of a GPU
};
[[nodiscard]] State& state();

/// Returns a call's result and records it for cudaGetLastError.
cudaError_t returned(cudaError_t error);
/// Returns whether the nth event of a countdown is this one.
[[nodiscard]] bool is_nth(std::atomic<int64_t>& countdown);
/// Returns the calling thread's device.
[[nodiscard]] int current_device();
/// Returns the injected failure of a call that enqueues work, before it does anything. During a capture a failure
/// invalidates the graph.
[[nodiscard]] cudaError_t before_work(cudaStream_t stream);
/// Returns the injected failure of a call that builds a graph, before it does anything.
[[nodiscard]] cudaError_t before_graph_call();
/// Returns the failure of a call that must not happen while this thread captures.
[[nodiscard]] cudaError_t before_other();
[[nodiscard]] CUstream_st* make_stream(int device);

}  // namespace millrace::emulator
