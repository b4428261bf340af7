#include "model/recurrent_mixer.h"

#include <cmath>

#include "model/recurrent_tensors.h"
#include "model/weight_packer.h"

namespace millrace::model {

using tensor::DType;
using tensor::Matrix;

namespace {

/// Returns a rank's part of a mixer that all ranks divide evenly.
DeltaNetConfig part_of(DeltaNetConfig net, int32_t ranks) {
  net.key_head_count /= ranks;
  net.value_head_count /= ranks;
  return net;
}
MambaConfig part_of(MambaConfig mamba, int32_t ranks) {
  mamba.head_count /= ranks;
  mamba.group_count /= ranks;
  return mamba;
}
ShortConvConfig part_of(ShortConvConfig conv, int32_t ranks) {
  conv.width /= ranks;
  return conv;
}

/// The columns of a mixer's activations.
struct Columns {
  int64_t input = 0;
  int64_t steps = 0;
  int64_t conv = 0;
  int64_t result = 0;
  int64_t gate_rank = 0;
};

Columns columns_of(const DeltaNetConfig& net) {
  const int64_t conv = 2 * net.key_width() + net.value_width();
  if (net.channel_decay)
    return {.input = conv,
            .steps = net.value_head_count,
            .conv = conv,
            .result = net.value_width(),
            .gate_rank = net.gate_rank};
  return {.input = conv + net.value_width(),
          .steps = 2 * int64_t{net.value_head_count},
          .conv = conv,
          .result = net.value_width()};
}
Columns columns_of(const MambaConfig& mamba) {
  const int64_t conv = mamba.inner_width() + 2 * mamba.group_width();
  return {.input = conv + mamba.inner_width(), .steps = mamba.head_count, .conv = conv, .result = mamba.inner_width()};
}
/// The op reads the projection and writes the output.
Columns columns_of(const ShortConvConfig& conv) {
  return {.input = 3 * int64_t{conv.width}, .steps = 0, .conv = 0, .result = 0};
}

/// Returns the numbers that multiply the parts of what a mixer convolves; empty where none does. A convolution is
/// linear in them, so that its weights take them.
std::vector<float> convolved_factors(const RecurrentConfig& mixer) {
  const auto* mamba = std::get_if<MambaConfig>(&mixer);
  if (mamba == nullptr) return {};
  return {mamba->factors.x, mamba->factors.b, mamba->factors.c};
}

/// Returns rows [channels, width] of several tensors as [width, channels]. `factors` multiply the parts, if any.
std::vector<float> transposed_conv(WeightPacker& packer, const std::vector<TensorSpec>& parts,
                                   const std::vector<float>& factors) {
  std::vector<float> rows;
  for (size_t part = 0; part < parts.size(); ++part) {
    for (const float value : packer.values(parts[part].name))
      rows.push_back(factors.empty() ? value : value * factors[part]);
  }
  const auto width = static_cast<size_t>(parts.front().shape[1]);
  const size_t channels = rows.size() / width;
  std::vector<float> columns(rows.size());
  for (size_t channel = 0; channel < channels; ++channel) {
    for (size_t tap = 0; tap < width; ++tap) columns[tap * channels + channel] = rows[channel * width + tap];
  }
  return columns;
}

}  // namespace

std::unique_ptr<RecurrentWeights> load_recurrent(WeightPacker& packer, tensor::Backend& backend,
                                                 const ModelConfig& config, int32_t layer) {
  const RecurrentTensors tensors = recurrent_tensors(config, layer);
  const auto vector = [&](const std::vector<TensorSpec>& specs,
                          float factor = 1.0f) -> std::unique_ptr<tensor::DeviceVector> {
    return specs.empty() ? nullptr : packer.vector(names_of(specs), {.factor = factor});
  };
  const auto one = [&](const std::optional<TensorSpec>& spec) -> std::unique_ptr<tensor::DeviceVector> {
    return spec ? packer.vector({spec->name}) : nullptr;
  };
  const auto* mamba = std::get_if<MambaConfig>(&*config.layer(layer).recurrent);
  const float bias_factor = mamba != nullptr ? mamba->input_bias_factor : 1.0f;
  auto weights = std::make_unique<RecurrentWeights>();
  weights->input = packer.pack(names_of(tensors.input));
  weights->input_bias = vector(tensors.input_bias, bias_factor);
  if (!tensors.steps.empty()) weights->steps = packer.pack_plain(names_of(tensors.steps));
  const auto factors = [&](const std::optional<TensorSpec>& a, const std::optional<TensorSpec>& b) {
    return a ? LowRankWeights{.a = packer.pack_plain({a->name}), .b = packer.pack_plain({b->name})} : LowRankWeights{};
  };
  weights->decays = factors(tensors.decay_a, tensors.decay_b);
  weights->gates = factors(tensors.gate_a, tensors.gate_b);
  weights->steps_bias = vector(tensors.steps_bias, bias_factor);
  weights->conv =
      backend.make_vector(transposed_conv(packer, tensors.conv, convolved_factors(*config.layer(layer).recurrent)));
  weights->conv_bias = vector(tensors.conv_bias);
  if (tensors.decay) {
    std::vector<float> decay = packer.values(tensors.decay->name);
    for (float& value : decay) value = config.names.stores_decay_rates ? -value : std::exp(value);
    weights->decay = backend.make_vector(decay);
  }
  weights->step_bias = one(tensors.step_bias);
  weights->skip = one(tensors.skip);
  weights->norm = one(tensors.norm);
  return weights;
}

RecurrentMixer::RecurrentMixer(tensor::Backend& backend, const RecurrentConfig& config, int32_t ranks,
                               float norm_epsilon, int64_t rows)
    : backend_(backend), config_(config), ranks_(ranks), norm_epsilon_(norm_epsilon) {
  const Columns columns = std::visit([ranks](const auto& mixer) { return columns_of(part_of(mixer, ranks)); }, config);
  input_columns_ = columns.input;
  step_columns_ = columns.steps;
  conv_columns_ = columns.conv;
  result_columns_ = columns.result;
  gate_rank_ = columns.gate_rank;
  const auto allocate = [&](int64_t cols, DType dtype = DType::kF32) {
    return backend.allocate(Matrix{.dtype = dtype, .rows = rows, .cols = cols}.bytes());
  };
  projected_ = allocate(input_columns_);
  steps_ = allocate(step_columns_);
  convolved_ = allocate(conv_columns_);
  result_ = allocate(result_columns_);
  if (gate_rank_ == 0) return;
  low_rank_ = allocate(gate_rank_);
  low_converted_ = allocate(gate_rank_, backend.compute_dtype());
  channel_steps_ = allocate(result_columns_);
  gates_ = allocate(result_columns_);
}

void RecurrentMixer::mix(const RecurrentWeights& weights, Matrix input, const States& states, Matrix out) {
  const auto scratch = [&](const tensor::Buffer& buffer, int64_t cols) {
    return Matrix{.data = buffer.data(), .dtype = DType::kF32, .rows = input.rows, .cols = cols};
  };
  const Matrix projected = scratch(projected_, input_columns_);
  const Matrix steps = scratch(steps_, step_columns_);
  backend_.matmul(input, *weights.input, weights.input_bias.get(), projected);
  if (weights.steps) backend_.matmul(input, *weights.steps, weights.steps_bias.get(), steps);
  const Projected all{.input = input, .columns = projected, .steps = steps};
  std::visit([&](const auto& mixer) { mix(part_of(mixer, ranks_), weights, states, all, out); }, config_);
}

Matrix RecurrentMixer::low_rank(const LowRankWeights& weights, Matrix input, const tensor::Buffer& buffer) {
  const Matrix low{.data = low_rank_.data(), .dtype = DType::kF32, .rows = input.rows, .cols = gate_rank_};
  Matrix converted = low;
  converted.data = low_converted_.data();
  converted.dtype = backend_.compute_dtype();
  const Matrix out{.data = buffer.data(), .dtype = DType::kF32, .rows = input.rows, .cols = result_columns_};
  backend_.matmul(input, *weights.a, nullptr, low);
  backend_.convert(low, converted);
  backend_.matmul(converted, *weights.b, nullptr, out);
  return out;
}

Matrix RecurrentMixer::result(int64_t rows) const {
  return {.data = result_.data(), .dtype = DType::kF32, .rows = rows, .cols = result_columns_};
}

Matrix RecurrentMixer::convolve(const tensor::ConvShape& shape, const RecurrentWeights& weights, const States& states,
                                Matrix projected) {
  const Matrix convolved{
      .data = convolved_.data(), .dtype = DType::kF32, .rows = projected.rows, .cols = conv_columns_};
  backend_.causal_conv(projected, shape, *weights.conv, weights.conv_bias.get(), states.batch, states.cache,
                       states.layer, convolved);
  return convolved;
}

void RecurrentMixer::mix(const DeltaNetConfig& net, const RecurrentWeights& weights, const States& states,
                         const Projected& projected, Matrix out) {
  const tensor::ConvShape conv{.channels = conv_columns_, .width = net.conv_width};
  const tensor::DeltaNetShape shape{.key_head_count = net.key_head_count,
                                    .value_head_count = net.value_head_count,
                                    .key_dim = net.key_dim,
                                    .value_dim = net.value_dim,
                                    .state_begin = conv.state_values(),
                                    .channel_decay = net.channel_decay};
  tensor::DeltaNetInputs in{.mixed = convolve(conv, weights, states, projected.columns), .gates = projected.steps};
  const Matrix values = result(out.rows);
  if (net.channel_decay) in.channel_steps = low_rank(weights.decays, projected.input, channel_steps_);
  backend_.delta_net(in, shape, *weights.decay, *weights.step_bias, states.batch, states.cache, states.layer, values);
  const Matrix gates = net.channel_decay ? low_rank(weights.gates, projected.input, gates_) : projected.columns;
  backend_.gated_rms_norm(
      values, gates, net.channel_decay ? 0 : conv_columns_,
      {.weight = weights.norm.get(), .epsilon = norm_epsilon_, .group = net.value_dim, .sigmoid = net.channel_decay},
      out);
}

void RecurrentMixer::mix(const MambaConfig& mamba, const RecurrentWeights& weights, const States& states,
                         const Projected& projected, Matrix out) {
  const tensor::ConvShape conv{.channels = conv_columns_, .width = mamba.conv_width};
  const tensor::StateSpaceShape shape{.head_count = mamba.head_count,
                                      .head_dim = mamba.head_dim,
                                      .group_count = mamba.group_count,
                                      .state_dim = mamba.state_dim,
                                      .min_step = mamba.min_step,
                                      .max_step = mamba.max_step,
                                      .state_begin = conv.state_values()};
  const Matrix convolved = convolve(conv, weights, states, projected.columns);
  const Matrix steps = projected.steps;
  const Matrix values = result(out.rows);
  if (mamba.factors.step != 1.0f) backend_.scale(steps, mamba.factors.step);
  backend_.state_space(convolved, steps, shape, *weights.decay, *weights.step_bias, *weights.skip, states.batch,
                       states.cache, states.layer, values);
  backend_.gated_rms_norm(values, projected.columns, conv_columns_,
                          {.weight = weights.norm.get(),
                           .epsilon = norm_epsilon_,
                           .group = mamba.inner_width() / mamba.group_count,
                           .gate_first = mamba.norm != MambaNorm::kBeforeGate,
                           .gate_factor = mamba.factors.gate},
                          out);
}

void RecurrentMixer::mix(const ShortConvConfig& conv, const RecurrentWeights& weights, const States& states,
                         const Projected& projected, Matrix out) {
  backend_.short_conv(projected.columns, {.channels = conv.width, .width = conv.conv_width}, *weights.conv,
                      weights.conv_bias.get(), states.batch, states.cache, states.layer, out);
}

}  // namespace millrace::model
