#include "cuda/recurrent_ops.h"

#include <algorithm>

#include "base/check.h"
#include "cuda/operands.h"
#include "cuda/recurrent_kernels.h"

namespace millrace::cuda {
namespace {

using tensor::DType;

/// Returns the layout of a cache, which must have room for `values` of each sequence. CHECKs that the batch has the
/// pages that every sequence needs: those of the tokens before its first row and of its last row that is no draft.
const DeviceKvCache& states_in(const BatchStates& at, int64_t values) {
  const tensor::KvCacheShape& shape = at.states.shape();
  CHECK(shape.state_values >= values && at.layer >= 0 && at.layer < shape.layer_count,
        "layer {} of {} with states of {} values, wanted at least {}", at.layer, shape.layer_count, shape.state_values,
        values);
  const tensor::BatchLayout& batch = at.batch.layout;
  for (size_t s = 0; s < batch.sequence_count(); ++s) {
    const int32_t rows = batch.row_begin[s + 1] - batch.row_begin[s] - batch.draft_count(s);
    const auto has_page = [&](int32_t position) {
      return batch.pages[static_cast<size_t>(batch.page_begin[s] + position / shape.page_size)] != tensor::kNoPage;
    };
    if (batch.row_begin[s + 1] == batch.row_begin[s]) continue;
    CHECK(rows > 0, "sequence {} has no row before its {} drafts", s, batch.draft_count(s));
    CHECK(batch.prefix[s] == 0 || has_page(batch.prefix[s] - 1),
          "sequence {} has no page with its state after {} tokens", s, batch.prefix[s]);
    CHECK(has_page(batch.prefix[s] + rows - 1), "sequence {} has no page for its state after {} tokens", s,
          batch.prefix[s] + rows);
  }
  return as_cuda(at.states).layout();
}

DeviceConvolution convolution_of(const tensor::ConvShape& shape, const tensor::DeviceVector& weight,
                                 const tensor::DeviceVector* bias) {
  CHECK(shape.width >= 2 && shape.width <= kMaxConvWidth, "a convolution over {} tokens, wanted 2 to {}", shape.width,
        kMaxConvWidth);
  CHECK(weight.size() == shape.channels * shape.width && (bias == nullptr || bias->size() == shape.channels),
        "a convolution of {} channels over {} tokens with {} weights", shape.channels, shape.width, weight.size());
  return {.weight = values_of(&weight),
          .bias = values_of(bias),
          .channels = static_cast<int32_t>(shape.channels),
          .width = shape.width};
}

void check_heads(const tensor::DeviceVector& vector, int32_t heads) {
  CHECK(vector.size() == heads, "a vector of {} for {} heads", vector.size(), heads);
}

}  // namespace

void run_causal_conv(Device& device, tensor::Matrix in, const tensor::ConvShape& shape,
                     const tensor::DeviceVector& weight, const tensor::DeviceVector* bias, const BatchStates& at,
                     tensor::Matrix out) {
  const CudaBatch& batch = as_cuda(at.batch);
  check_matrix("in", in, DType::kF32, batch.bounds.rows, std::max(in.cols, shape.channels));
  check_matrix("out", out, DType::kF32, in.rows, shape.channels);
  causal_conv(device.compute.get(), floats(in), static_cast<int32_t>(in.cols), convolution_of(shape, weight, bias),
              batch.device, batch.bounds, states_in(at, shape.state_values()), at.layer, floats(out));
}

void run_short_conv(Device& device, tensor::Matrix in, const tensor::ConvShape& shape,
                    const tensor::DeviceVector& weight, const tensor::DeviceVector* bias, const BatchStates& at,
                    tensor::Matrix out) {
  const CudaBatch& batch = as_cuda(at.batch);
  check_matrix("in", in, DType::kF32, batch.bounds.rows, 3 * shape.channels);
  check_matrix("out", out, DType::kBF16, in.rows, shape.channels);
  short_conv(device.compute.get(), floats(in), convolution_of(shape, weight, bias), batch.device, batch.bounds,
             states_in(at, shape.state_values()), at.layer, out.data);
}

void run_delta_net(Device& device, const tensor::DeltaNetInputs& in, const tensor::DeltaNetShape& shape,
                   const tensor::DeviceVector& decay, const tensor::DeviceVector& step_bias, const BatchStates& at,
                   tensor::Matrix out) {
  const int32_t heads = shape.value_head_count;
  const CudaBatch& batch = as_cuda(at.batch);
  CHECK(shape.key_head_count > 0 && heads % shape.key_head_count == 0, "{} value heads over {} key heads", heads,
        shape.key_head_count);
  CHECK(!shape.channel_decay || heads == shape.key_head_count, "channels decay in {} key heads of {} heads",
        shape.key_head_count, heads);
  const int64_t steps = shape.channel_decay ? shape.key_width() : heads;
  check_matrix("mixed", in.mixed, DType::kF32, batch.bounds.rows, 2 * shape.key_width() + shape.value_width());
  check_matrix("gates", in.gates, DType::kF32, in.mixed.rows, (shape.channel_decay ? 1 : 2) * int64_t{heads});
  if (shape.channel_decay) check_matrix("channel_steps", in.channel_steps, DType::kF32, in.mixed.rows, steps);
  check_matrix("out", out, DType::kF32, in.mixed.rows, shape.value_width());
  check_heads(decay, heads);
  CHECK(step_bias.size() == steps, "{} biases for {} steps", step_bias.size(), steps);
  delta_net(device.compute.get(),
            {.mixed = floats(in.mixed),
             .gates = floats(in.gates),
             .channel_steps = shape.channel_decay ? floats(in.channel_steps) : nullptr},
            shape, {.decay = values_of(&decay), .step_bias = values_of(&step_bias)}, batch.device, batch.bounds,
            states_in(at, shape.state_begin + shape.value_width() * shape.key_dim), at.layer, floats(out));
}

void run_state_space(Device& device, tensor::Matrix mixed, tensor::Matrix steps, const tensor::StateSpaceShape& shape,
                     const tensor::DeviceVector& decay, const tensor::DeviceVector& step_bias,
                     const tensor::DeviceVector& skip, const BatchStates& at, tensor::Matrix out) {
  const int32_t heads = shape.head_count;
  const CudaBatch& batch = as_cuda(at.batch);
  CHECK(shape.group_count > 0 && heads % shape.group_count == 0, "{} heads over {} groups", heads, shape.group_count);
  check_matrix("mixed", mixed, DType::kF32, batch.bounds.rows, shape.inner_width() + 2 * shape.group_width());
  check_matrix("steps", steps, DType::kF32, mixed.rows, heads);
  check_matrix("out", out, DType::kF32, mixed.rows, shape.inner_width());
  for (const tensor::DeviceVector* vector : {&decay, &step_bias, &skip}) check_heads(*vector, heads);
  state_space(device.compute.get(), floats(mixed), floats(steps), shape,
              {.decay = values_of(&decay), .step_bias = values_of(&step_bias), .skip = values_of(&skip)}, batch.device,
              batch.bounds, states_in(at, shape.state_begin + shape.inner_width() * shape.state_dim), at.layer,
              floats(out));
}

void run_gated_rms_norm(Device& device, tensor::Matrix in, tensor::Matrix gates, int64_t first_gate,
                        const tensor::GatedNorm& norm, tensor::Matrix out) {
  check_matrix("in", in, DType::kF32, out.rows, out.cols);
  check_matrix("gates", gates, DType::kF32, in.rows, gates.cols);
  check_matrix("out", out, DType::kBF16, in.rows, in.cols);
  CHECK(first_gate >= 0 && first_gate + in.cols <= gates.cols, "gates [{}, {}) of {}", first_gate, first_gate + in.cols,
        gates.cols);
  const int64_t weights = norm.weight != nullptr ? norm.weight->size() : norm.group;
  CHECK(norm.group > 0 && in.cols % norm.group == 0 && (weights == norm.group || weights == in.cols),
        "groups of {} with {} weights for {} columns", norm.group, weights, in.cols);
  CHECK(!norm.sigmoid || (norm.weight != nullptr && !norm.gate_first && norm.gate_factor == 1.0f),
        "a sigmoid gate without a norm before it, or with factor {}", norm.gate_factor);
  gated_rms_norm(device.compute.get(),
                 {.in = floats(in),
                  .gates = floats(gates),
                  .gate_columns = static_cast<int32_t>(gates.cols),
                  .first_gate = static_cast<int32_t>(first_gate),
                  .weight = values_of(norm.weight),
                  .weights = static_cast<int32_t>(weights),
                  .group = static_cast<int32_t>(norm.group),
                  .columns = static_cast<int32_t>(in.cols),
                  .epsilon = norm.epsilon,
                  .gate_first = norm.gate_first,
                  .gate_factor = norm.gate_factor,
                  .sigmoid = norm.sigmoid},
                 static_cast<int32_t>(in.rows), out.data);
}

}  // namespace millrace::cuda
