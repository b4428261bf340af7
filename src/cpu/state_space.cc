#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "cpu/ops.h"
#include "cpu/state_runs.h"

namespace millrace::cpu {
namespace {

using tensor::StateSpaceShape;

/// The op's inputs, of which a head of a sequence needs its part.
struct StateSpace {
  Device& device;
  tensor::Matrix mixed;
  tensor::Matrix steps;
  const StateSpaceShape& shape;
  const CpuVector& decay;
  const CpuVector& step_bias;
  const CpuVector& skip;
  const tensor::BatchLayout& batch;
  const CpuKvCache& states;
  int32_t layer;
  tensor::Matrix out;

  [[nodiscard]] size_t state_size() const {
    return static_cast<size_t>(shape.state_dim) * static_cast<size_t>(shape.head_dim);
  }

  /// Returns the values of a thread's scratch: the block, then the state after drafts.
  [[nodiscard]] size_t scratch_values() const {
    return state_size() + static_cast<size_t>(shape.state_dim) * kStateColumns;
  }

  /// Computes all rows of a sequence.
  void run_head(size_t sequence, int32_t head, float* scratch) const {
    const int64_t state_at = shape.state_begin + head * static_cast<int64_t>(state_size());
    float* const of_drafts = scratch + shape.state_dim * kStateColumns;
    for_state_runs(batch, sequence, states, layer, [&](const StateRun& run) {
      float* const to = run.to == nullptr ? of_drafts : run.to + state_at;
      if (run.from == nullptr) std::memset(to, 0, state_size() * sizeof(float));
      const float* from = run.from == nullptr ? to : run.from + state_at;
      for (int32_t row = run.first; row < run.end; row += kMaxStateTokens, from = to)
        run_rows({.first = row, .end = std::min(run.end, row + kMaxStateTokens), .from = from, .to = to}, head,
                 scratch);
    });
  }

 private:
  /// Computes at most kMaxStateTokens rows of a head, whose states a run names.
  void run_rows(const StateRun& run, int32_t head, float* block) const {
    std::array<float, kMaxStateTokens> decays;
    std::array<float, kMaxStateTokens> step_sizes;
    for (int32_t row = run.first; row < run.end; ++row) {
      const float step = std::clamp(softplus(row_of<float>(steps, row)[head] + step_bias.data()[head]), shape.min_step,
                                    shape.max_step);
      step_sizes[static_cast<size_t>(row - run.first)] = step;
      decays[static_cast<size_t>(row - run.first)] = std::exp(-step * decay.data()[head]);
    }
    const auto* const in = row_of<float>(mixed, run.first);
    const float* const b =
        in + shape.inner_width() + int64_t{head / (shape.head_count / shape.group_count)} * shape.state_dim;
    const int64_t x_at = int64_t{head} * shape.head_dim;
    device.kernels.state_space_steps({.from = run.from,
                                      .to = run.to,
                                      .x = in + x_at,
                                      .b = b,
                                      .c = b + shape.group_width(),
                                      .decay = decays.data(),
                                      .step = step_sizes.data(),
                                      .skip = skip.data()[head],
                                      .in_stride = mixed.cols,
                                      .count = run.end - run.first,
                                      .state_dim = shape.state_dim,
                                      .head_dim = shape.head_dim,
                                      .out = row_of<float>(out, run.first) + x_at,
                                      .out_stride = out.cols,
                                      .block = block});
  }
};

}  // namespace

void state_space(Device& device, tensor::Matrix mixed, tensor::Matrix steps, const StateSpaceShape& shape,
                 const CpuVector& decay, const CpuVector& step_bias, const CpuVector& skip,
                 const tensor::BatchLayout& batch, CpuKvCache& states, int32_t layer, tensor::Matrix out) {
  const int32_t heads = shape.head_count;
  CHECK(shape.group_count > 0 && heads % shape.group_count == 0, "{} heads over {} groups", heads, shape.group_count);
  check_matrix("mixed", mixed, tensor::DType::kF32, out.rows, shape.inner_width() + 2 * shape.group_width());
  check_matrix("steps", steps, tensor::DType::kF32, out.rows, heads);
  check_matrix("out", out, tensor::DType::kF32, mixed.rows, shape.inner_width());
  check_batch(batch, mixed.rows, states);
  check_states(states, layer, shape.state_begin + shape.inner_width() * shape.state_dim);
  for (const CpuVector* vector : {&decay, &step_bias, &skip})
    CHECK(vector->size() == heads, "a vector of {} for {} heads", vector->size(), heads);
  const StateSpace space{device, mixed, steps, shape, decay, step_bias, skip, batch, states, layer, out};
  const int64_t items = static_cast<int64_t>(batch.sequence_count()) * heads;
  device.pool.run_ranges(items, [&](int64_t begin, int64_t end, int slot) {
    auto* const scratch = device.slot_scratch[static_cast<size_t>(slot)].reserve_as<float>(space.scratch_values());
    for (int64_t item = begin; item < end; ++item)
      space.run_head(static_cast<size_t>(item / heads), static_cast<int32_t>(item % heads), scratch);
  });
}

}  // namespace millrace::cpu
