#pragma once

#include <atomic>
#include <cstdint>

namespace millrace::tensor {

/// A barrier of a fixed number of ranks that is used again and again. Ranks spin for some microseconds and then sleep.
/// It counts arrivals without a reset: turn n is complete after n · ranks arrivals. Owned by a group of ranks.
class RankGate {
 public:
  /// `spins` is the number of looks before a rank sleeps; 0 where ranks outnumber the processors.
  RankGate(uint32_t ranks, int spins) : ranks_(ranks), spins_(spins) {}

  /// Arrives at turn `turn`, counted from 1, and waits for the other ranks. Returns false when the gate was closed
  /// before the last arrival. All ranks of one turn get the same result.
  [[nodiscard]] bool arrive_and_wait(uint32_t turn);
  /// Ends all turns that are not complete; from any thread.
  void close();
  [[nodiscard]] bool closed() const { return (word_.load(std::memory_order_acquire) & kClosed) != 0; }

 private:
  static constexpr uint32_t kClosed = 1;
  static constexpr uint32_t kArrival = 2;
  /// Returns whether turn `turn` is complete. The count wraps around, and ranks are at most one turn apart.
  [[nodiscard]] bool complete(uint32_t word, uint32_t turn) const {
    return static_cast<int32_t>((word & ~kClosed) - turn * ranks_ * kArrival) >= 0;
  }

  const uint32_t ranks_;
  const int spins_;
  alignas(64) std::atomic<uint32_t> word_{0};  // arrivals · kArrival | kClosed
};

}  // namespace millrace::tensor
