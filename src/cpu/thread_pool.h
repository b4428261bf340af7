#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace millrace::cpu {

/// Runs parallel regions: `run(chunks, body)` calls body(chunk, slot) once for every chunk in [0, chunks) and returns
/// when all are complete.
///
/// A region ends when its chunks are done, not when every thread has arrived. A late or descheduled helper therefore
/// costs nothing. Which thread runs a chunk is arbitrary: `slot` names scratch memory and must not affect results.
/// Owned by a backend; `run` may be called from any thread, one region at a time. Helpers spin for some microseconds
/// after a region, then sleep.
class ThreadPool {
 public:
  static constexpr uint32_t kMaxChunks = 65535;

  /// Starts `threads - 1` helpers; the calling thread is the other one. Helper i runs on CPU pin[i % pin.size()], or on
  /// any CPU when `pin` is empty. Throws ErrorException (kExhausted) when the system refuses a thread.
  ThreadPool(int threads, const std::vector<int>& pin);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  /// Calls body(uint32_t chunk, int slot) with 0 <= slot < threads(). Chunks start in ascending order. Rethrows the
  /// first exception after all chunks have ended.
  template <class Body>
  void run(uint32_t chunks, Body&& body) {
    run_zones(chunks, 1, [&](uint32_t begin, uint32_t end, int slot) {
      for (uint32_t chunk = begin; chunk < end; ++chunk) body(chunk, slot);
    });
  }

  /// Cuts [0, items) into ranges and calls body(begin, end, slot) for each. A thread continues after its last range, so
  /// that it reads contiguous memory; when its share is done it takes from the end of another's. Ranges shrink with the
  /// rest of a share down to one item, so that threads end within about an item of each other.
  template <class Body>
  void run_ranges(int64_t items, Body&& body) {
    if (items <= 0) return;
    const int64_t chunks = items < kMaxChunks ? items : kMaxChunks;
    run_zones(
        static_cast<uint32_t>(chunks), static_cast<uint32_t>(threads()),
        [&](uint32_t begin, uint32_t end, int slot) { body(items * begin / chunks, items * end / chunks, slot); });
  }

 private:
  using Erased = void (*)(void* context, uint32_t begin, uint32_t end, int slot);  // chunks [begin, end)

  /// Chunks that are claimed from either end: generation of the region (32 bits) | end (16) | next (16). A claim
  /// exchanges the whole word, so that a late helper never acts on a newer region.
  struct alignas(64) Zone {
    std::atomic<uint64_t> word{0};
  };

  template <class Body>
  void run_zones(uint32_t chunks, uint32_t zones, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_erased(
        chunks, zones,
        [](void* context, uint32_t begin, uint32_t end, int slot) {
          (*static_cast<Plain*>(context))(begin, end, slot);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }
  void run_erased(uint32_t chunks, uint32_t zones, Erased body, void* context);
  void work_on_region(int slot);
  void empty_zone(Zone& zone, bool own, int slot);
  void helper_loop(int slot);
  void end_helpers();

  std::vector<Zone> zones_;  // [threads], of which a region fills some
  alignas(64) std::atomic<Erased> body_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<uint32_t> zone_count_{1};
  alignas(64) std::atomic<uint32_t> generation_{0};  // rises when all zones of a region are filled, and at the end
  std::atomic<bool> closing_{false};
  alignas(64) std::atomic<int32_t> unfinished_{0};
  alignas(64) std::atomic<int32_t> sleepers_{0};

  std::mutex run_mutex_;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
  std::vector<std::thread> helpers_;
};

/// Hints to the core that the thread spins.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Restricts the calling thread to one CPU; a CPU that does not exist is ignored with a warning.
void pin_to_cpu(int cpu);

}  // namespace millrace::cpu
