#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "cpu/ops.h"
#include "cpu/state_runs.h"

namespace millrace::cpu {
namespace {

using tensor::DeltaNetShape;

/// The op's inputs, of which a head of a sequence needs its part.
struct DeltaNet {
  Device& device;
  const tensor::DeltaNetInputs& in;
  const DeltaNetShape& shape;
  const CpuVector& decay;
  const CpuVector& step_bias;
  const tensor::BatchLayout& batch;
  const CpuKvCache& states;
  int32_t layer;
  tensor::Matrix out;

  /// Returns the values of a thread's scratch: q, k and decays of kMaxStateTokens tokens, the block, the state after
  /// drafts.
  [[nodiscard]] size_t scratch_values() const {
    return static_cast<size_t>(shape.key_dim) *
           static_cast<size_t>(3 * kMaxStateTokens + kStateColumns + shape.value_dim);
  }

  /// Computes all rows of a sequence. `unit` are 1/√key_dim, [key_dim], and 1/key_dim, [key_dim].
  void run_head(size_t sequence, int32_t head, const float* unit, float* scratch) const {
    const int64_t state_at = shape.state_begin + head * int64_t{shape.key_dim} * shape.value_dim;
    float* const of_drafts = scratch + shape.key_dim * (3 * kMaxStateTokens + kStateColumns);
    for_state_runs(batch, sequence, states, layer, [&](const StateRun& run) {
      float* const to = run.to == nullptr ? of_drafts : run.to + state_at;
      if (run.from == nullptr)
        std::memset(to, 0, static_cast<size_t>(int64_t{shape.key_dim} * shape.value_dim) * sizeof(float));
      const float* from = run.from == nullptr ? to : run.from + state_at;
      for (int32_t row = run.first; row < run.end; row += kMaxStateTokens, from = to)
        run_rows({.first = row, .end = std::min(run.end, row + kMaxStateTokens), .from = from, .to = to}, head, unit,
                 scratch);
    });
  }

 private:
  /// Computes at most kMaxStateTokens rows of a head, whose states a run names.
  void run_rows(const StateRun& run, int32_t head, const float* unit, float* scratch) const {
    const int64_t key_dim = shape.key_dim;
    const int64_t key_at = head / (shape.value_head_count / shape.key_head_count) * key_dim;
    const int64_t value_at = int64_t{head} * shape.value_dim;
    const float epsilon = 1e-6f / static_cast<float>(key_dim);
    float* const q = scratch;
    float* const k = q + kMaxStateTokens * key_dim;
    float* const decays = k + kMaxStateTokens * key_dim;
    std::array<float, kMaxStateTokens> strengths;
    for (int32_t row = run.first; row < run.end; ++row) {
      const auto* const vectors = row_of<float>(in.mixed, row);
      const int64_t at = row - run.first;
      // An RMS norm by √key_dim has unit length.
      device.kernels.rms_norm(vectors + key_at, unit + key_dim, epsilon, q + at * key_dim, key_dim);
      device.kernels.rms_norm(vectors + shape.key_width() + key_at, unit, epsilon, k + at * key_dim, key_dim);
      const auto* const gate = row_of<float>(in.gates, row);
      strengths[static_cast<size_t>(at)] = 1.0f / (1.0f + std::exp(-gate[head]));
      if (shape.channel_decay)
        device.kernels.channel_decays(row_of<float>(in.channel_steps, row) + head * key_dim,
                                      step_bias.data() + head * key_dim, decay.data()[head], decays + at * key_dim,
                                      key_dim);
      else
        decays[at] = decay_of(gate[shape.value_head_count + head], head);
    }
    device.kernels.delta_steps({.from = run.from,
                                .to = run.to,
                                .q = q,
                                .k = k,
                                .v = row_of<float>(in.mixed, run.first) + 2 * shape.key_width() + value_at,
                                .decay = decays,
                                .strength = strengths.data(),
                                .row_decays = shape.channel_decay,
                                .v_stride = in.mixed.cols,
                                .count = run.end - run.first,
                                .key_dim = key_dim,
                                .value_dim = shape.value_dim,
                                .out = row_of<float>(out, run.first) + value_at,
                                .out_stride = out.cols,
                                .block = decays + kMaxStateTokens * key_dim});
  }

  [[nodiscard]] float decay_of(float step, int32_t head) const {
    return std::exp(-decay.data()[head] * softplus(step + step_bias.data()[head]));
  }
};

}  // namespace

void delta_net(Device& device, const tensor::DeltaNetInputs& in, const DeltaNetShape& shape, const CpuVector& decay,
               const CpuVector& step_bias, const tensor::BatchLayout& batch, CpuKvCache& states, int32_t layer,
               tensor::Matrix out) {
  const int32_t heads = shape.value_head_count;
  CHECK(shape.key_head_count > 0 && heads % shape.key_head_count == 0, "{} value heads over {} key heads", heads,
        shape.key_head_count);
  CHECK(!shape.channel_decay || heads == shape.key_head_count, "channels decay in {} key heads of {} heads",
        shape.key_head_count, heads);
  const int64_t steps = shape.channel_decay ? shape.key_width() : heads;
  check_matrix("mixed", in.mixed, tensor::DType::kF32, out.rows, 2 * shape.key_width() + shape.value_width());
  check_matrix("gates", in.gates, tensor::DType::kF32, out.rows, (shape.channel_decay ? 1 : 2) * int64_t{heads});
  if (shape.channel_decay) check_matrix("channel_steps", in.channel_steps, tensor::DType::kF32, out.rows, steps);
  check_matrix("out", out, tensor::DType::kF32, in.mixed.rows, shape.value_width());
  check_batch(batch, in.mixed.rows, states);
  check_states(states, layer, shape.state_begin + shape.value_width() * shape.key_dim);
  CHECK(decay.size() == heads && step_bias.size() == steps, "{} decays and {} biases for {} heads", decay.size(),
        step_bias.size(), heads);
  const auto key_dim = static_cast<size_t>(shape.key_dim);
  std::vector<float> unit(2 * key_dim, 1.0f / std::sqrt(static_cast<float>(shape.key_dim)));
  std::fill(unit.begin() + shape.key_dim, unit.end(), 1.0f / static_cast<float>(shape.key_dim));
  const DeltaNet net{device, in, shape, decay, step_bias, batch, states, layer, out};
  device.pool.run_ranges(
      static_cast<int64_t>(batch.sequence_count()) * heads, [&](int64_t begin, int64_t end, int slot) {
        auto* const scratch = device.slot_scratch[static_cast<size_t>(slot)].reserve_as<float>(net.scratch_values());
        for (int64_t item = begin; item < end; ++item)
          net.run_head(static_cast<size_t>(item / heads), static_cast<int32_t>(item % heads), unit.data(), scratch);
      });
}

}  // namespace millrace::cpu
