#pragma once

// Kernels of recurrent mixers: a token of a convolution, tokens of a delta net's head and of a state space's head.
// Included only by kernels.cc, after elementwise_kernels.h.

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

#if defined(__AVX512F__)
constexpr int kRegisterFile = 32;
#else
constexpr int kRegisterFile = 16;  // a Vec has two (AVX2) or four (portable) of them
#endif
/// Vectors of columns per block: over several tokens the block stays in the first-level cache, one token reads as much
/// of a row as registers can sum.
constexpr int kMultiTokenVecs = kRegisterFile >= 32 ? static_cast<int>(kStateColumns / kLanes) : 1;
constexpr int kSingleTokenVecs = kRegisterFile >= 32 ? 8 : 2;
static_assert(kMultiTokenVecs * kLanes <= kStateColumns, "a block must fit its scratch");

/// Calls block.run<vectors>(first, lanes) for blocks of columns that cover [0, count): `kVecs` whole vectors at a time,
/// then half as many.
template <int kVecs, class Block>
MILLRACE_INLINE void for_column_blocks(int64_t first, int64_t count, const Block& block) {
  for (; first + kVecs * kLanes <= count; first += kVecs * kLanes) block.template run<kVecs>(first, kLanes);
  if constexpr (kVecs > 1) {
    for_column_blocks<kVecs / 2>(first, count, block);
  } else if (first < count) {
    block.template run<1>(first, count - first);
  }
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

/// Calls body(row, part) for all rows, two at a time.
template <class Body>
MILLRACE_INLINE void for_state_rows(int64_t rows, const Body& body) {
  int64_t row = 0;
  for (; row + 2 <= rows; row += 2) {
    body(row, 0);
    body(row + 1, 1);
  }
  if (row < rows) body(row, 0);
}

/// Columns of a state where a token finds them, and where it leaves them.
struct StatePlace {
  const float* from;
  float* to;
  int64_t from_stride;
  int64_t to_stride;

  template <class Steps>
  StatePlace(const Steps& task, int64_t state_stride, int64_t token, int64_t first, int64_t columns)
      : from(token == 0 ? task.from + first : task.block),
        to(token + 1 == task.count ? task.to + first : task.block),
        from_stride(token == 0 ? state_stride : columns),
        to_stride(token + 1 == task.count ? state_stride : columns) {}
};

/// Computes ln(1 + e^x). ln(1 + y) is 2·artanh(y / (2 + y)), as a series up to the 15th power.
MILLRACE_INLINE Vec softplus(Vec x) {
  const Vec y = exp(-max(x, -x));
  const Vec s = y * reciprocal(y + 2.0f);
  const Vec z = s * s;
  Vec p = splat(1.0f / 15.0f);
#pragma clang loop unroll(full)
  for (int power = 13; power > 0; power -= 2) p = fma(p, z, splat(1.0f / static_cast<float>(power)));
  return fma(s * 2.0f, p, max(x, splat(0.0f)));
}

void channel_decays(const float* steps, const float* bias, float rate, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t part = count - i < kLanes ? count - i : kLanes;
    const Vec x = load_part(steps + i, part, 0.0f) + load_part(bias + i, part, 0.0f);
    store_part(out + i, exp(softplus(x) * -rate), part);
  }
}

/// Columns of the state of a delta net's head, which do not depend on each other. The pass that writes the state after
/// a token sums it with the next token's key at once. With kRowDecays rows have decays of their own, which the sums
/// with keys take in; else one decay multiplies the sum.
template <bool kRowDecays>
struct DeltaColumns {
  const DeltaSteps& task;

  template <int kVecs>
  MILLRACE_INLINE void run(int64_t first, int64_t lanes) const {
    RowSums<kVecs> seen;  // Sᵀk, before the decay if all rows have one
    for_state_rows(task.key_dim, [&](int64_t row, int part) __attribute__((always_inline)) {
      const Vec k = splat(seen_key(0, row));
#pragma clang loop unroll(full)
      for (int v = 0; v < kVecs; ++v)
        seen.add(part, v, k, load_part(task.from + row * task.value_dim + first + v * kLanes, lanes, 0.0f));
    });
    int64_t token = 0;
    for (; token + 1 < task.count; ++token) add_token<kVecs, true>(token, first, lanes, seen);
    add_token<kVecs, false>(token, first, lanes, seen);
  }

 private:
  /// Returns what a row of the state before a token counts in Sᵀk.
  [[nodiscard]] MILLRACE_INLINE float seen_key(int64_t token, int64_t row) const {
    const int64_t at = token * task.key_dim + row;
    return kRowDecays ? task.k[at] * task.decay[at] : task.k[at];
  }

  /// Computes a token, and with `kHasNext` the sums that the next one sees.
  template <int kVecs, bool kHasNext>
  MILLRACE_INLINE void add_token(int64_t token, int64_t first, int64_t lanes, RowSums<kVecs>& seen) const {
    const StatePlace place(task, task.value_dim, token, first, kVecs * kLanes);
    const float* const decays = kRowDecays ? task.decay + token * task.key_dim : task.decay + token;
    const Vec common_decay = splat(kRowDecays ? 1.0f : *decays);
    Vec change[kVecs];
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v) {
      const Vec wanted = load_part(task.v + token * task.v_stride + first + v * kLanes, lanes, 0.0f);
      change[v] = (wanted - seen.total(v) * common_decay) * task.strength[token];
    }
    const float* const keys = task.k + token * task.key_dim;
    const float* const queries = task.q + token * task.key_dim;
    RowSums<kVecs> out;
    RowSums<kVecs> next;
    for_state_rows(task.key_dim, [&](int64_t row, int part) __attribute__((always_inline)) {
      const Vec k = splat(keys[row]);
      const Vec q = splat(queries[row]);
      const Vec next_k = splat(kHasNext ? seen_key(token + 1, row) : 0.0f);
      const Vec decay = kRowDecays ? splat(decays[row]) : common_decay;
#pragma clang loop unroll(full)
      for (int v = 0; v < kVecs; ++v) {
        const Vec before = load_part(place.from + row * place.from_stride + v * kLanes, lanes, 0.0f);
        const Vec state = fma(k, change[v], before * decay);
        store_part(place.to + row * place.to_stride + v * kLanes, state, lanes);
        out.add(part, v, q, state);
        if constexpr (kHasNext) next.add(part, v, next_k, state);
      }
    });
    seen = next;
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v)
      store_part(task.out + token * task.out_stride + first + v * kLanes, out.total(v), lanes);
  }
};

template <bool kRowDecays>
void delta_steps_of(const DeltaSteps& task) {
  const DeltaColumns<kRowDecays> columns{task};
  if (task.count == 1) return for_column_blocks<kSingleTokenVecs>(0, task.value_dim, columns);
  for_column_blocks<kMultiTokenVecs>(0, task.value_dim, columns);
}

void delta_steps(const DeltaSteps& task) {
  if (task.row_decays) return delta_steps_of<true>(task);
  delta_steps_of<false>(task);
}

/// Columns of the state of a state space's head.
struct StateSpaceColumns {
  const StateSpaceSteps& task;

  template <int kVecs>
  MILLRACE_INLINE void run(int64_t first, int64_t lanes) const {
    for (int64_t token = 0; token < task.count; ++token) add_token<kVecs>(token, first, lanes);
  }

 private:
  template <int kVecs>
  MILLRACE_INLINE void add_token(int64_t token, int64_t first, int64_t lanes) const {
    const StatePlace place(task, task.head_dim, token, first, kVecs * kLanes);
    const Vec decay = splat(task.decay[token]);
    Vec x[kVecs];
    Vec scaled[kVecs];
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v) {
      x[v] = load_part(task.x + token * task.in_stride + first + v * kLanes, lanes, 0.0f);
      scaled[v] = x[v] * task.step[token];
    }
    const float* const in = task.b + token * task.in_stride;
    const float* const seen = task.c + token * task.in_stride;
    RowSums<kVecs> out;
    for_state_rows(task.state_dim, [&](int64_t row, int part) __attribute__((always_inline)) {
      const Vec b = splat(in[row]);
      const Vec c = splat(seen[row]);
#pragma clang loop unroll(full)
      for (int v = 0; v < kVecs; ++v) {
        const Vec before = load_part(place.from + row * place.from_stride + v * kLanes, lanes, 0.0f);
        const Vec state = fma(b, scaled[v], before * decay);
        store_part(place.to + row * place.to_stride + v * kLanes, state, lanes);
        out.add(part, v, c, state);
      }
    });
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v)
      store_part(task.out + token * task.out_stride + first + v * kLanes, fma(x[v], splat(task.skip), out.total(v)),
                 lanes);
  }
};

void state_space_steps(const StateSpaceSteps& task) {
  if (task.count == 1) return for_column_blocks<kSingleTokenVecs>(0, task.head_dim, StateSpaceColumns{task});
  for_column_blocks<kMultiTokenVecs>(0, task.head_dim, StateSpaceColumns{task});
}

}  // namespace
}  // namespace millrace::cpu
