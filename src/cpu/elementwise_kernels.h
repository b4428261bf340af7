#pragma once

// Kernels over one row: conversions, norms, activations, rotation. Included only by kernels.cc.

#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace millrace::cpu {
namespace {

void narrow(const float* in, uint16_t* out, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store_as(out + i, narrow_bf16(load(in + i)));
  if (i == count) return;
  const Halves last = narrow_bf16(load_part(in + i, count - i, 0.0f));
  __builtin_memcpy(out + i, &last, static_cast<size_t>(count - i) * sizeof(uint16_t));
}

void widen(const std::byte* bytes, float* out, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(out + i, widen_bf16(load_as<Halves>(bytes + i * 2)));
  if (i == count) return;
  Halves last = {};
  __builtin_memcpy(&last, bytes + i * 2, static_cast<size_t>(count - i) * sizeof(uint16_t));
  store_part(out + i, widen_bf16(last), count - i);
}

MILLRACE_INLINE Vec widen_binary16(Halves half) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(_mm512_cvtph_ps(reinterpret_cast<__m256i>(half)));
#else
  const Bits word = __builtin_convertvector(half, Bits);
  const Bits sign = (word & 0x8000u) << 16;
  const Bits magnitude = (word & 0x7FFFu) << 13;
  // Scaling by 2^112 moves the exponent's bias, and makes subnormals normal on the way.
  const Vec scaled = reinterpret_cast<Vec>(magnitude) * 0x1p112f;
  const Bits special = magnitude | 0x7F800000u;
  const Bits value = magnitude >= 0x0F800000u ? special : reinterpret_cast<Bits>(scaled);
  return reinterpret_cast<Vec>(value | sign);
#endif
}

void widen_f16(const std::byte* bytes, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t part = count - i < kLanes ? count - i : kLanes;
    Halves half = {};
    __builtin_memcpy(&half, bytes + i * 2, static_cast<size_t>(part) * sizeof(uint16_t));
    store_part(out + i, widen_binary16(half), part);
  }
}

void rms_norm(const float* in, const float* weight, float epsilon, float* out, int64_t count) {
  Vec squares = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vec x = load_part(in + i, count - i < kLanes ? count - i : kLanes, 0.0f);
    squares = fma(x, x, squares);
  }
  const float mean = lane_sum(squares) / static_cast<float>(count);
  const float inverse = 1.0f / __builtin_sqrtf(mean + epsilon);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t part = count - i < kLanes ? count - i : kLanes;
    store_part(out + i, load_part(in + i, part, 0.0f) * inverse * load_part(weight + i, part, 0.0f), part);
  }
}

void add(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t part = count - i < kLanes ? count - i : kLanes;
    store_part(out + i, load_part(out + i, part, 0.0f) + load_part(in + i, part, 0.0f), part);
  }
}

template <int kCount>
void add_partial_sums_of(const float* const* sums, int64_t length, float* out) {
  for (int64_t first = 0; first < length; first += kPanelColumns) {
#pragma clang loop unroll(full)
    for (int64_t i = first; i < first + kPanelColumns; i += kLanes) {
      Vec total = load(sums[0] + i);
#pragma clang loop unroll(full)
      for (int s = 1; s < kCount; ++s) total += load(sums[s] + i);
      store(out + i, total);
    }
  }
}

void add_partial_sums(const float* const* sums, int count, int64_t length, float* out) {
  (count == 2   ? add_partial_sums_of<2>
   : count == 3 ? add_partial_sums_of<3>
                : add_partial_sums_of<4>)(sums, length, out);
}

void add_expert(const float* in, float scale, const float* own, const float* const* addends, int count, int64_t length,
                float* out) {
  const Vec factor = splat(scale);
  for (int64_t i = 0; i < length; i += kLanes) {
    const int64_t part = length - i < kLanes ? length - i : kLanes;
    Vec total = fma(load_part(in + i, part, 0.0f), factor, own == nullptr ? Vec{} : load_part(own + i, part, 0.0f));
    for (int a = 0; a < count; ++a) total += load_part(addends[a] + i, part, 0.0f);
    store_part(out + i, total, part);
  }
}

/// Computes x · sigmoid(y).
MILLRACE_INLINE Vec times_sigmoid(Vec x, Vec y) {
  return x * reciprocal(exp(-y) + 1.0f);
}

struct Silu {
  MILLRACE_INLINE Vec operator()(Vec gate, Vec up) const { return times_sigmoid(gate, gate) * up; }
};

struct GeluTanh {
  /// Uses (1 + tanh(z)) / 2 = sigmoid(2z).
  MILLRACE_INLINE Vec operator()(Vec gate, Vec up) const {
    constexpr float kTwiceRootOfTwoOverPi = 1.5957691216057308f;
    const Vec z = gate * fma(gate * gate, splat(0.044715f), splat(1.0f)) * kTwiceRootOfTwoOverPi;
    return times_sigmoid(gate, z) * up;
  }
};

struct ClampedSwiglu {
  float alpha;
  float limit;
  MILLRACE_INLINE Vec operator()(Vec gate, Vec up) const {
    const Vec g = gate > splat(limit) ? splat(limit) : gate;
    const Vec below = up > splat(limit) ? splat(limit) : up;
    const Vec u = below < splat(-limit) ? splat(-limit) : below;
    return times_sigmoid(g, g * alpha) * (u + 1.0f);
  }
};

/// Calls use(f) with the function object of a gated activation.
template <class Use>
MILLRACE_INLINE void with_activation(const tensor::GatedActivation& activation, const Use& use) {
  switch (activation.function) {
    case tensor::GatedFunction::kSilu: return use(Silu{});
    case tensor::GatedFunction::kGeluTanh: return use(GeluTanh{});
    case tensor::GatedFunction::kClampedSwiglu: return use(ClampedSwiglu{activation.alpha, activation.limit});
  }
}

template <class F>
MILLRACE_INLINE void activate_with(const F& f, const float* gate, const float* up, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t part = count - i < kLanes ? count - i : kLanes;
    store_part(out + i, f(load_part(gate + i, part, 0.0f), load_part(up + i, part, 0.0f)), part);
  }
}

void activate(const tensor::GatedActivation& activation, const float* gate, const float* up, float* out,
              int64_t count) {
  with_activation(activation,
                  [&](const auto& f) __attribute__((always_inline)) { activate_with(f, gate, up, out, count); });
}

/// Processes rows of a panel's sums with all 32 results, several rows at a time to overlap their latencies.
template <int R, class F>
MILLRACE_INLINE void activate_panel(const F& f, const float* sums, bool bf16, std::byte* out, size_t stride) {
  constexpr int kVecs = kPanelColumns / 2 / kLanes;
  Vec value[R][kVecs];
#pragma clang loop unroll(full)
  for (int row = 0; row < R; ++row) {
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v) {
      const float* gate = sums + row * kPanelColumns + v * kLanes;
      value[row][v] = f(load(gate), load(gate + kPanelColumns / 2));
    }
  }
#pragma clang loop unroll(full)
  for (int row = 0; row < R; ++row) {
    std::byte* const to = out + static_cast<size_t>(row) * stride;
#pragma clang loop unroll(full)
    for (int v = 0; v < kVecs; ++v) {
      if (bf16) {
        store_as(to + v * kLanes * 2, narrow_bf16(value[row][v]));
      } else {
        store_as(to + v * kLanes * 4, value[row][v]);
      }
    }
  }
}

template <class F>
MILLRACE_INLINE void activate_rows_with(const F& f, const float* sums, int64_t rows, int64_t count, bool bf16,
                                        std::byte* out, size_t stride) {
  constexpr int kRows = 2;
  constexpr int64_t kCount = kPanelColumns / 2;
  int64_t row = 0;
  const auto at = [&](int64_t r) __attribute__((always_inline)) { return out + static_cast<size_t>(r) * stride; };
  if (count == kCount) {
    for (; row + kRows <= rows; row += kRows)
      activate_panel<kRows>(f, sums + row * kPanelColumns, bf16, at(row), stride);
  }
  for (; row < rows; ++row) {
    const float* const gate = sums + row * kPanelColumns;
    float values[kCount];
    activate_with(f, gate, gate + kCount, values, count);
    if (bf16) {
      narrow(values, reinterpret_cast<uint16_t*>(at(row)), count);
    } else {
      __builtin_memcpy(at(row), values, static_cast<size_t>(count) * sizeof(float));
    }
  }
}

void activate_rows(const tensor::GatedActivation& activation, const float* sums, int64_t rows, int64_t count, bool bf16,
                   std::byte* out, size_t stride) {
  with_activation(activation, [&](const auto& f) __attribute__((always_inline)) {
    activate_rows_with(f, sums, rows, count, bf16, out, stride);
  });
}

void soft_cap(float* values, float cap, int64_t count) {
  const float inverse = 1.0f / cap;
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t part = count - i < kLanes ? count - i : kLanes;
    store_part(values + i, tanh(load_part(values + i, part, 0.0f) * inverse) * cap, part);
  }
}

void rotate(float* head, const float* cos, const float* sin, int32_t half) {
  for (int32_t i = 0; i < half; i += kLanes) {
    const int32_t part = half - i < kLanes ? half - i : kLanes;
    const Vec c = load_part(cos + i, part, 0.0f);
    const Vec s = load_part(sin + i, part, 0.0f);
    const Vec x = load_part(head + i, part, 0.0f);
    const Vec y = load_part(head + half + i, part, 0.0f);
    store_part(head + i, x * c - y * s, part);
    store_part(head + half + i, y * c + x * s, part);
  }
}

}  // namespace
}  // namespace millrace::cpu
