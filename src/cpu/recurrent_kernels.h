#pragma once

// Kernels of recurrent mixers: a token of a convolution, of a delta net's head, of a state space's head. Included only
// by kernels.cc, after elementwise_kernels.h.

#include "cpu/elementwise_kernels.h"
#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace millrace::cpu {
namespace {

void multiply(const float* a, const float* b, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t part = count - i < kLanes ? count - i : kLanes;
    store_part(out + i, load_part(a + i, part, 0.0f) * load_part(b + i, part, 0.0f), part);
  }
}

void gate(const float* values, const float* gates, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t part = count - i < kLanes ? count - i : kLanes;
    store_part(out + i, times_sigmoid(load_part(values + i, part, 0.0f), load_part(gates + i, part, 0.0f)), part);
  }
}

void convolve(const float* const* inputs, const float* weight, int64_t stride, int width, const float* bias, bool silu,
              int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t part = count - i < kLanes ? count - i : kLanes;
    Vec sum = bias == nullptr ? Vec{} : load_part(bias + i, part, 0.0f);
    for (int tap = 0; tap < width; ++tap)
      sum = fma(load_part(weight + tap * stride + i, part, 0.0f), load_part(inputs[tap] + i, part, 0.0f), sum);
    store_part(out + i, silu ? times_sigmoid(sum, sum) : sum, part);
  }
}

/// Calls block.run<vectors>(first, lanes) for blocks of columns that cover [0, count): four whole vectors at a time,
/// then single ones, the last of which may have fewer lanes.
template <class Block>
MILLRACE_INLINE void for_column_blocks(int64_t count, const Block& block) {
  constexpr int kVecs = 4;
  int64_t i = 0;
  for (; i + kVecs * kLanes <= count; i += kVecs * kLanes) block.template run<kVecs>(i, kLanes);
  for (; i < count; i += kLanes) block.template run<1>(i, count - i < kLanes ? count - i : kLanes);
}

/// Sums of several vectors of columns over rows, with two partial sums to overlap their latencies: of even and of odd
/// rows.
template <int kVecs>
struct RowSums {
  Vec parts[2][kVecs] = {};
  MILLRACE_INLINE void add(int part, int v, Vec factor, Vec value) {
    parts[part][v] = fma(factor, value, parts[part][v]);
  }
  [[nodiscard]] MILLRACE_INLINE Vec total(int v) const { return parts[0][v] + parts[1][v]; }
};

/// Calls body(row, v) for all rows and vectors, two rows at a time.
template <int kVecs, class Body>
MILLRACE_INLINE void for_state_rows(int64_t rows, const Body& body) {
  int64_t row = 0;
  for (; row + 2 <= rows; row += 2) {
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v) body(row, 0, v);
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v) body(row + 1, 1, v);
  }
  for (int v = 0; v < kVecs && row < rows; ++v) body(row, 0, v);
}

/// The columns of the state of a delta net's head, which do not depend on each other.
struct DeltaColumns {
  const DeltaStep& task;

  template <int kVecs>
  MILLRACE_INLINE void run(int64_t first, int64_t lanes) const {
    const int64_t stride = task.value_dim;
    const Vec decay = splat(task.decay);
    RowSums<kVecs> seen;  // Sᵀk before the decay
    for_state_rows<kVecs>(task.key_dim, [&](int64_t row, int part, int v) __attribute__((always_inline)) {
      seen.add(part, v, splat(task.k[row]), load_part(task.from + row * stride + first + v * kLanes, lanes, 0.0f));
    });
    Vec change[kVecs];
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v) {
      const Vec wanted = load_part(task.v + first + v * kLanes, lanes, 0.0f);
      change[v] = (wanted - seen.total(v) * decay) * task.strength;
    }
    RowSums<kVecs> out;
    for_state_rows<kVecs>(task.key_dim, [&](int64_t row, int part, int v) __attribute__((always_inline)) {
      const int64_t at = row * stride + first + v * kLanes;
      const Vec state = fma(splat(task.k[row]), change[v], load_part(task.from + at, lanes, 0.0f) * decay);
      store_part(task.to + at, state, lanes);
      out.add(part, v, splat(task.q[row]), state);
    });
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v) store_part(task.out + first + v * kLanes, out.total(v), lanes);
  }
};

void delta_step(const DeltaStep& task) {
  for_column_blocks(task.value_dim, DeltaColumns{task});
}

/// The columns of the state of a state space's head.
struct StateSpaceColumns {
  const StateSpaceStep& task;

  template <int kVecs>
  MILLRACE_INLINE void run(int64_t first, int64_t lanes) const {
    const Vec decay = splat(task.decay);
    Vec x[kVecs];
    Vec scaled[kVecs];
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v) {
      x[v] = load_part(task.x + first + v * kLanes, lanes, 0.0f);
      scaled[v] = x[v] * task.step;
    }
    RowSums<kVecs> out;
    for_state_rows<kVecs>(task.state_dim, [&](int64_t row, int part, int v) __attribute__((always_inline)) {
      const int64_t at = row * task.head_dim + first + v * kLanes;
      const Vec state = fma(splat(task.b[row]), scaled[v], load_part(task.from + at, lanes, 0.0f) * decay);
      store_part(task.to + at, state, lanes);
      out.add(part, v, splat(task.c[row]), state);
    });
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v)
      store_part(task.out + first + v * kLanes, fma(x[v], splat(task.skip), out.total(v)), lanes);
  }
};

void state_space_step(const StateSpaceStep& task) {
  for_column_blocks(task.head_dim, StateSpaceColumns{task});
}

}  // namespace
}  // namespace millrace::cpu
