#pragma once

#include <chrono>
#include <cstdint>

/// The controls of the fake CUDA runtime: the toolkit's own declarations over a thread per stream and plain memory.
/// Work runs later, on the stream's thread, and nothing but an event or a synchronising call orders it with the host:
/// what is read too early or reused too soon is a wrong result, or a race that the thread sanitizer sees.
namespace millrace::emulator {

/// Calls since the last reset().
struct Counts {
  uint64_t allocations = 0;       ///< of device or pinned memory, and what frees it
  uint64_t frees = 0;             ///< of these, what frees
  uint64_t creations = 0;         ///< of streams, events and graphs
  uint64_t synchronisations = 0;  ///< calls that make the host wait, whatever their names
  uint64_t launches = 0;          ///< of kernels, one by one
  uint64_t copies = 0;
  uint64_t graph_launches = 0;
  uint64_t divided_streams = 0;  ///< created on a part of a GPU
  uint64_t captures = 0;         ///< begun
  uint64_t timed_events = 0;     ///< created to tell times, which costs those who only wait for them
};
[[nodiscard]] Counts counts();
/// Graphs, executable or not, that nobody has destroyed yet.
[[nodiscard]] int64_t live_graphs();

/// Counts from zero again, ends delays and injected failures, forgets an error that stuck.
void reset();
/// Each piece of work waits up to `most` before it runs.
void delay_randomly(uint64_t seed, std::chrono::microseconds most);
/// The nth call from now on (from 1) that brings work to a stream returns cudaErrorLaunchOutOfResources.
void fail_call(uint64_t nth);
/// The nth call from now on (from 1) that a graph is made by fails: one that begins, fills or ends a capture,
/// instantiates what was captured or uploads that. What it leaves behind is what the real one leaves.
void fail_graph_call(uint64_t nth);
/// The nth launch of a graph from now on fails; the first `begun` pieces of its work run all the same.
void fail_graph_launch(uint64_t nth, size_t begun = 0);
/// From now on every call ends in cudaErrorIllegalAddress, as behind a kernel that wrote where it may not; or from the
/// next launch of a graph on.
void lose_device();
void lose_device_at_graph_launch();
/// From now on no stream can be captured, as with a driver that cannot.
void refuse_graphs();
/// The nth event that is recorded from now on (from 1) ends in cudaErrorIllegalAddress; with `sticks`, so does every
/// call after it, as on a real device.
void fail_event(uint64_t nth, bool sticks);
/// GPUs of this machine; 0: there is no driver.
void set_device_count(int count);
/// Of every GPU: 4 if nothing else is said, of compute capability 9.0 (90).
void set_multiprocessors(int count);
void set_capability(int capability);

}  // namespace millrace::emulator
