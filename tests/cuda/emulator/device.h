#pragma once

// The names of CUDA C++ that the kernels use, for a compiler that knows none of them. Included by src/cuda/launch.h.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>

#include "cuda/emulator/block.h"
#include "cuda/emulator/emulator.h"

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __noinline__
#define __noinline__
#undef __forceinline__
#define __forceinline__ inline
#define threadIdx (::millrace::emulator::current_thread().index)
#define blockIdx (::millrace::emulator::current_block().index)
#define blockDim (::millrace::emulator::current_block().shape)
#define gridDim (::millrace::emulator::current_block().grid)

inline void __syncthreads(std::source_location where = std::source_location::current()) {
  millrace::emulator::synchronize_block(where);
}
inline void __syncwarp(uint32_t mask = 0xFFFFFFFFu) {
  millrace::emulator::synchronize_warp("__syncwarp", mask, nullptr, nullptr, [](const auto&) {});
}
inline void __threadfence() {}

namespace millrace::emulator {

/// Gives each lane the value of the lane that source(lane) names.
template <class T, class Source>
T shuffle(const char* operation, uint32_t mask, T value, Source source) {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  T result{};
  synchronize_warp(operation, mask, &value, &result, [&](const Collective& lanes) {
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      std::memcpy(lanes.out[static_cast<size_t>(lane)], lanes.in[static_cast<size_t>(source(lane))], sizeof(T));
    }
  });
  return result;
}

}  // namespace millrace::emulator

template <class T>
T __shfl_sync(uint32_t mask, T value, int from) {
  // Every lane may name another source, so the sources travel too.
  struct Asked {
    T value;
    int from;
  } asked{value, from & 31};
  T result{};
  millrace::emulator::synchronize_warp("__shfl_sync", mask, &asked, &result, [](const auto& lanes) {
    for (size_t lane = 0; lane < millrace::emulator::kWarpLanes; ++lane) {
      const auto* own = static_cast<const Asked*>(lanes.in[lane]);
      *static_cast<T*>(lanes.out[lane]) = static_cast<const Asked*>(lanes.in[static_cast<size_t>(own->from)])->value;
    }
  });
  return result;
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int bits) {
  return millrace::emulator::shuffle("__shfl_xor_sync", mask, value, [bits](int lane) { return lane ^ bits; });
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, int distance) {
  return millrace::emulator::shuffle("__shfl_up_sync", mask, value,
                                     [distance](int lane) { return lane < distance ? lane : lane - distance; });
}
inline uint32_t __ballot_sync(uint32_t mask, int condition) {
  uint32_t result = 0;
  millrace::emulator::synchronize_warp("__ballot_sync", mask, &condition, &result, [](const auto& lanes) {
    uint32_t votes = 0;
    for (size_t lane = 0; lane < millrace::emulator::kWarpLanes; ++lane) {
      votes |= uint32_t{*static_cast<const int*>(lanes.in[lane]) != 0} << lane;
    }
    for (void* out : lanes.out) *static_cast<uint32_t*>(out) = votes;
  });
  return result;
}

namespace millrace::emulator {

/// Gives every lane the result of `pick` over the values of all lanes.
template <class Pick>
uint32_t reduce(const char* operation, uint32_t mask, uint32_t value, Pick pick) {
  uint32_t result = 0;
  synchronize_warp(operation, mask, &value, &result, [&](const Collective& lanes) {
    uint32_t picked = *static_cast<const uint32_t*>(lanes.in[0]);
    for (const void* in : lanes.in) picked = pick(picked, *static_cast<const uint32_t*>(in));
    for (void* out : lanes.out) *static_cast<uint32_t*>(out) = picked;
  });
  return result;
}

}  // namespace millrace::emulator

inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t value) {
  return millrace::emulator::reduce("__reduce_max_sync", mask, value,
                                    [](uint32_t a, uint32_t b) { return std::max(a, b); });
}
inline uint32_t __reduce_min_sync(uint32_t mask, uint32_t value) {
  return millrace::emulator::reduce("__reduce_min_sync", mask, value,
                                    [](uint32_t a, uint32_t b) { return std::min(a, b); });
}

using std::max;
using std::min;

inline int __ffs(uint32_t word) {
  return word == 0 ? 0 : std::countr_zero(word) + 1;
}
inline int __popc(uint32_t word) {
  return std::popcount(word);
}
inline uint32_t __float_as_uint(float value) {
  return std::bit_cast<uint32_t>(value);
}
inline float __uint_as_float(uint32_t bits) {
  return std::bit_cast<float>(bits);
}
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t chosen = 0;
  for (uint32_t i = 0; i < 4; ++i) chosen |= static_cast<uint32_t>(bytes >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
  return chosen;
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}

template <class T>
T __ldcg(const T* at) {
  return *at;
}

// Blocks of kernels on different streams may run at the same time.
template <class T>
T atomicAdd(T* at, T value) {
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
template <class T>
T atomicExch(T* at, T value) {
  return __atomic_exchange_n(at, value, __ATOMIC_RELAXED);
}
template <class T>
T atomicOr(T* at, T value) {
  return __atomic_fetch_or(at, value, __ATOMIC_RELAXED);
}
template <class T>
T atomicMax(T* at, T value) {
  T found = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (found < value && !__atomic_compare_exchange_n(at, &found, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return found;
}
template <class T>
T atomicMin(T* at, T value) {
  T found = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (value < found && !__atomic_compare_exchange_n(at, &found, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return found;
}
