#include "tensor/rank_gate.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace::tensor {
namespace {

void pause_core() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

bool RankGate::arrive_and_wait(uint32_t turn) {
  uint32_t word = word_.load(std::memory_order_relaxed);
  do {
    // After the closing no rank arrives, so that a count which is complete was complete before.
    if ((word & kClosed) != 0) return false;
  } while (!word_.compare_exchange_weak(word, word + kArrival, std::memory_order_acq_rel, std::memory_order_relaxed));
  word += kArrival;
  if (complete(word, turn)) {
    word_.notify_all();
    return true;
  }
  for (int spin = 0;; ++spin) {
    word = word_.load(std::memory_order_acquire);
    if (complete(word, turn)) return true;
    if ((word & kClosed) != 0) return false;
    if (spin < spins_) {
      pause_core();
    } else {
      word_.wait(word, std::memory_order_acquire);
    }
  }
}

void RankGate::close() {
  word_.fetch_or(kClosed, std::memory_order_acq_rel);
  word_.notify_all();
}

}  // namespace millrace::tensor
