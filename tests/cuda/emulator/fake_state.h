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

/// What the parts of the fake runtime share. Private to it.
namespace millrace::emulator {

/// What a process starts with, where no test can call in: MILLRACE_EMULATED_GPUS, the first one's serial number in
/// MILLRACE_EMULATED_FIRST_SERIAL, the number of one that another process has for itself in
/// MILLRACE_EMULATED_BUSY_GPU, the version of the driver in MILLRACE_EMULATED_DRIVER, and
/// MILLRACE_EMULATED_FAILING_CALL and …_EVENT for fail_call and fail_event, whose error sticks with
/// MILLRACE_EMULATED_FAILURE_STICKS=1, and MILLRACE_EMULATED_REFUSED_GRAPHS=1 for refuse_graphs.
inline int initial(const char* name, int otherwise) {
  const char* given = std::getenv(name);
  return given == nullptr ? otherwise : std::atoi(given);
}

struct State {
  std::atomic<uint64_t> allocations{0}, frees{0}, creations{0}, synchronisations{0}, launches{0}, copies{0},
      graph_launches{0}, divided_streams{0}, captures{0}, timed_events{0};
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

/// What a call returns, for cudaGetLastError too.
cudaError_t returned(cudaError_t error);
/// Whether the nth event of a countdown is this one.
[[nodiscard]] bool is_nth(std::atomic<int64_t>& countdown);
/// The calling thread's.
[[nodiscard]] int current_device();
/// What a call that brings work to a stream ends in before it does anything. In a graph that is being captured, an
/// error spoils all of it.
[[nodiscard]] cudaError_t before_work(cudaStream_t stream);
/// What a call that a graph is made by ends in, before it does anything.
[[nodiscard]] cudaError_t before_graph_call();
/// The same for calls that must not happen while this thread captures.
[[nodiscard]] cudaError_t before_other();
[[nodiscard]] CUstream_st* make_stream(int device);

}  // namespace millrace::emulator
