// The ops of recurrent mixers as plain loops; see plain_kernels.cc.

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "cuda/emulator/emulator.h"
#include "cuda/recurrent_kernels.h"
#include "cuda_backend/plain_numbers.h"
#include "cuda_backend/plain_rows.h"

namespace millrace::cuda {
namespace {

float logistic(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}
float softplus(float x) {
  return x > 20.0f ? x : std::log1p(std::exp(x));
}

/// Calls each(row, state) for every row with its sequence's state of `count` values from `first` on, and stores what
/// the rows leave where the batch has a page for it.
template <class Each>
void each_state(const DeviceBatch& batch, const DeviceKvCache& states, int32_t layer, int64_t first, int64_t count,
                const Each& each) {
  const auto state_in = [&](int32_t sequence, int32_t position) -> float* {
    const uint32_t page = page_of(batch, states, sequence, position);
    if (page == kNoStatePage) return nullptr;
    return reinterpret_cast<float*>(static_cast<std::byte*>(states.data) + page * kv_page_bytes(states) +
                                    static_cast<size_t>(layer) * kv_layer_bytes(states)) +
           first;
  };
  std::vector<float> state;
  each_row(batch, [&](int32_t row, int32_t sequence, int32_t position) {
    if (row == batch.row_begin[sequence]) {
      state.assign(static_cast<size_t>(count), 0.0f);
      const float* const before = position > 0 ? state_in(sequence, position - 1) : nullptr;
      CHECK(position == 0 || before != nullptr, "no state before position {}", position);
      if (before != nullptr) std::copy_n(before, count, state.begin());
    }
    each(row, state);
    const int32_t kept_end = batch.row_begin[sequence + 1] - (batch.drafts == nullptr ? 0 : batch.drafts[sequence]);
    const bool is_kept = row + 1 == kept_end || (row < kept_end && (position + 1) % states.page_size == 0);
    float* const after = is_kept ? state_in(sequence, position) : nullptr;
    if (after != nullptr) std::ranges::copy(state, after);
  });
}

/// Computes all rows of a convolution: input(row, channel) gives x, and use(row, channel, sum) takes the result.
template <class Input, class Use>
void convolve(const DeviceConvolution& conv, const DeviceBatch& batch, const DeviceKvCache& states, int32_t layer,
              const Input& input, const Use& use) {
  const auto channels = static_cast<size_t>(conv.channels);
  const auto kept = static_cast<size_t>(conv.width - 1);
  each_state(batch, states, layer, 0, static_cast<int64_t>(kept * channels),
             [&](int32_t row, std::vector<float>& state) {
               for (size_t c = 0; c < channels; ++c) {
                 state.push_back(input(row, c));
                 float sum = conv.bias == nullptr ? 0.0f : conv.bias[c];
                 for (size_t tap = 0; tap <= kept; ++tap)
                   sum = std::fma(conv.weight[tap * channels + c], state[tap * channels + c], sum);
                 use(row, c, sum);
               }
               state.erase(state.begin(), state.begin() + static_cast<ptrdiff_t>(channels));
             });
}

/// One row's change of a head's state [keys, values], as StateRule has it. The state has decayed before.
struct Change {
  const float* k;
  const float* q;
  const float* v;
  float strength;
  bool is_delta;
};

void apply(const Change& change, size_t keys, size_t values, float* state, float* out) {
  for (size_t c = 0; c < values; ++c) {
    float seen = 0.0f;
    for (size_t i = 0; i < keys; ++i) seen += change.k[i] * state[i * values + c];
    const float added = (change.is_delta ? change.v[c] - seen : change.v[c]) * change.strength;
    out[c] = 0.0f;
    for (size_t i = 0; i < keys; ++i) {
      float& value = state[i * values + c];
      value = std::fma(change.k[i], added, value);
      out[c] = std::fma(change.q[i], value, out[c]);
    }
  }
}

/// Multiplies the rows of a head's state by decays, [keys].
void decay_rows(const std::vector<float>& decays, size_t values, float* state) {
  for (size_t i = 0; i < decays.size() * values; ++i) state[i] *= decays[i / values];
}

/// Returns a vector brought to a length.
std::vector<float> with_length(const float* from, size_t count, float length) {
  float squares = 1e-6f;
  for (size_t i = 0; i < count; ++i) squares += from[i] * from[i];
  std::vector<float> to(from, from + count);
  for (float& value : to) value *= length / std::sqrt(squares);
  return to;
}

}  // namespace

void causal_conv(cudaStream_t stream, const float* in, int32_t in_columns, const DeviceConvolution& convolution,
                 const DeviceBatch& batch, const BatchBounds& bounds, const DeviceKvCache& states, int32_t layer,
                 float* out) {
  emulator::emulated_enqueue(stream, [=] {
    check_bounds("causal_conv", batch, bounds);
    convolve(
        convolution, batch, states, layer,
        [&](int32_t row, size_t c) { return in[static_cast<size_t>(row * in_columns) + c]; },
        [&](int32_t row, size_t c, float sum) {
          out[static_cast<size_t>(row * convolution.channels) + c] = sum * logistic(sum);
        });
  });
}

void short_conv(cudaStream_t stream, const float* in, const DeviceConvolution& convolution, const DeviceBatch& batch,
                const BatchBounds& bounds, const DeviceKvCache& states, int32_t layer, void* out) {
  emulator::emulated_enqueue(stream, [=] {
    check_bounds("short_conv", batch, bounds);
    const auto channels = static_cast<size_t>(convolution.channels);
    const auto part = [&](int32_t row, size_t index, size_t c) {
      return in[(static_cast<size_t>(row) * 3 + index) * channels + c];
    };
    convolve(
        convolution, batch, states, layer, [&](int32_t row, size_t c) { return part(row, 0, c) * part(row, 2, c); },
        [&](int32_t row, size_t c, float sum) {
          bf16(out)[static_cast<size_t>(row) * channels + c] = to_bf16(sum * part(row, 1, c));
        });
  });
}

void delta_net(cudaStream_t stream, const DeviceDeltaInputs& inputs, const tensor::DeltaNetShape& shape,
               const DeviceStateWeights& weights, const DeviceBatch& batch, const BatchBounds& bounds,
               const DeviceKvCache& states, int32_t layer, float* out) {
  emulator::emulated_enqueue(stream, [=] {
    check_bounds("delta_net", batch, bounds);
    const auto keys = static_cast<size_t>(shape.key_dim);
    const auto values = static_cast<size_t>(shape.value_dim);
    const auto heads = static_cast<size_t>(shape.value_head_count);
    const auto key_width = static_cast<size_t>(shape.key_width());
    const size_t heads_per_key = heads / static_cast<size_t>(shape.key_head_count);
    each_state(batch, states, layer, shape.state_begin, static_cast<int64_t>(heads * keys * values),
               [&](int32_t row, std::vector<float>& state) {
                 const auto at = static_cast<size_t>(row);
                 const float* const in = inputs.mixed + at * (2 * key_width + heads * values);
                 const float* const gates = inputs.gates + at * (shape.channel_decay ? 1 : 2) * heads;
                 for (size_t head = 0; head < heads; ++head) {
                   float* const own = state.data() + head * keys * values;
                   std::vector<float> decays(keys);
                   for (size_t i = 0; i < keys; ++i) {
                     const float rate = weights.decay[head];
                     const size_t channel = shape.channel_decay ? head * keys + i : head;
                     const float given =
                         shape.channel_decay ? inputs.channel_steps[at * key_width + channel] : gates[heads + head];
                     const float step = given + weights.step_bias[channel];
                     decays[i] = std::exp(-rate * softplus(step));
                   }
                   decay_rows(decays, values, own);
                   const float* const q = in + head / heads_per_key * keys;
                   const auto unit_q = with_length(q, keys, 1.0f / std::sqrt(static_cast<float>(keys)));
                   const auto unit_k = with_length(q + key_width, keys, 1.0f);
                   apply({.k = unit_k.data(),
                          .q = unit_q.data(),
                          .v = in + 2 * key_width + head * values,
                          .strength = logistic(gates[head]),
                          .is_delta = true},
                         keys, values, own, out + (at * heads + head) * values);
                 }
               });
  });
}

void state_space(cudaStream_t stream, const float* mixed, const float* steps, const tensor::StateSpaceShape& shape,
                 const DeviceStateWeights& weights, const DeviceBatch& batch, const BatchBounds& bounds,
                 const DeviceKvCache& states, int32_t layer, float* out) {
  emulator::emulated_enqueue(stream, [=] {
    check_bounds("state_space", batch, bounds);
    const auto keys = static_cast<size_t>(shape.state_dim);
    const auto values = static_cast<size_t>(shape.head_dim);
    const auto heads = static_cast<size_t>(shape.head_count);
    const auto group_width = static_cast<size_t>(shape.group_width());
    const size_t heads_per_group = heads / static_cast<size_t>(shape.group_count);
    each_state(batch, states, layer, shape.state_begin, static_cast<int64_t>(heads * keys * values),
               [&](int32_t row, std::vector<float>& state) {
                 const auto at = static_cast<size_t>(row);
                 const float* const in = mixed + at * (heads * values + 2 * group_width);
                 for (size_t head = 0; head < heads; ++head) {
                   const float* const b = in + heads * values + head / heads_per_group * keys;
                   const float* const x = in + head * values;
                   const float step = std::clamp(softplus(steps[at * heads + head] + weights.step_bias[head]),
                                                 shape.min_step, shape.max_step);
                   float* const to = out + (at * heads + head) * values;
                   decay_rows(std::vector<float>(keys, std::exp(-weights.decay[head] * step)), values,
                              state.data() + head * keys * values);
                   apply({.k = b, .q = b + group_width, .v = x, .strength = step, .is_delta = false}, keys, values,
                         state.data() + head * keys * values, to);
                   for (size_t c = 0; c < values; ++c) to[c] = std::fma(x[c], weights.skip[head], to[c]);
                 }
               });
  });
}

void gated_rms_norm(cudaStream_t stream, const GatedNormOperands& norm, int32_t rows, void* out) {
  emulator::emulated_enqueue(stream, [=] {
    const auto columns = static_cast<size_t>(norm.columns);
    const auto group = static_cast<size_t>(norm.group);
    for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
      const float* const gates =
          norm.gates + row * static_cast<size_t>(norm.gate_columns) + static_cast<size_t>(norm.first_gate);
      for (size_t first = 0; first < columns; first += group) {
        const auto factor_of_gate = [&](size_t i) {
          const float gate = norm.gate_factor * gates[first + i];
          if (norm.sigmoid) return logistic(gate);
          return gate * logistic(gate);
        };
        const bool gates_first = norm.gate_first || norm.weight == nullptr;
        std::vector<float> values(norm.in + row * columns + first, norm.in + row * columns + first + group);
        float squares = 0.0f;
        for (size_t i = 0; i < group; ++i) {
          if (gates_first) values[i] *= factor_of_gate(i);
          squares += values[i] * values[i];
        }
        if (norm.weight == nullptr) {
          std::transform(values.begin(), values.end(), bf16(out) + row * columns + first, to_bf16);
          continue;
        }
        const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(group) + norm.epsilon);
        for (size_t i = 0; i < group; ++i) {
          const float normed = values[i] * inverse * norm.weight[(first + i) % static_cast<size_t>(norm.weights)];
          bf16(out)[row * columns + first + i] = to_bf16(gates_first ? normed : normed * factor_of_gate(i));
        }
      }
    }
  });
}

}  // namespace millrace::cuda
