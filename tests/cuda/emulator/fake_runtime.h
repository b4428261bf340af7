#pragma once

#include <chrono>
#include <cstdint>

/// The controls of the fake CUDA runtime, which implements the toolkit's declarations with a thread per stream and
/// plain memory. Work runs later, on the stream's thread. Only events and synchronising calls order it with the host. A
/// read that is too early, or a reuse too soon, gives a wrong result or a race that the thread sanitizer detects.
namespace millrace::emulator {

/// Numbers of calls since the last reset().
struct Counts {
  uint64_t allocations = 0;       ///< calls that allocate or free device or pinned memory
  uint64_t frees = 0;             ///< those of them that free
  uint64_t creations = 0;         ///< of streams, events and graphs
  uint64_t synchronisations = 0;  ///< calls that make the host wait, whatever their names
  uint64_t launches = 0;          ///< of kernels, one by one
  uint64_t copies = 0;
  uint64_t graph_launches = 0;
  uint64_t divided_streams = 0;  ///< created on a part of a GPU
  uint64_t captures = 0;         ///< begun
  uint64_t timed_events = 0;     ///< created with timing, which slows down waiting for them
  uint64_t graph_calls = 0;      ///< calls that build a graph, as fail_graph_call counts them
};
[[nodiscard]] Counts counts();
/// Returns the number of graphs, executable or not, that have not been destroyed.
[[nodiscard]] int64_t live_graphs();

/// Resets all counts, delays, injected failures and sticky errors.
void reset();
/// Delays each piece of work by up to `most` before it runs.
void delay_randomly(uint64_t seed, std::chrono::microseconds most);
/// Makes the nth call from now on (from 1) that enqueues work return cudaErrorLaunchOutOfResources.
void fail_call(uint64_t nth);
/// Makes the nth call from now on (from 1) that builds a graph fail: one that begins, fills or ends a capture,
/// instantiates it or uploads it. It leaves the state that the real runtime leaves.
void fail_graph_call(uint64_t nth);
/// Makes the nth launch of a graph from now on fail. The first `begun` pieces of its work still run.
void fail_graph_launch(uint64_t nth, size_t begun = 0);
/// Makes every call from now on return cudaErrorIllegalAddress, as after a kernel's illegal write; the second form
/// starts with the next launch of a graph.
void lose_device();
void lose_device_at_graph_launch();
/// Refuses to capture any stream from now on, like a driver without graphs.
void refuse_graphs();
/// Makes the nth recorded event from now on (from 1) end in cudaErrorIllegalAddress. With `sticks` every later call
/// does too, as on a real device.
void fail_event(uint64_t nth, bool sticks);
/// Sets the number of GPUs of this machine; 0: there is no driver.
void set_device_count(int count);
/// Sets the multiprocessors of every GPU. The default is 4 at compute capability 9.0.
void set_multiprocessors(int count);
void set_capability(int capability);

}  // namespace millrace::emulator
