#include <algorithm>
#include <cmath>

#include "cpu/reference.h"

namespace millrace::reference {
namespace {

double sigmoid_of(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

double softplus_of(double x) {
  return std::log1p(std::exp(x));
}

/// Returns `values` as doubles of length `length`.
std::vector<double> with_length(std::span<const float> values, double length) {
  double squares = 1e-6;
  for (const float value : values) squares += double{value} * value;
  std::vector<double> out;
  for (const float value : values) out.push_back(value / std::sqrt(squares) * length);
  return out;
}

}  // namespace

Values gate(const Values& values, const Values& gates) {
  Values out;
  for (size_t i = 0; i < values.size(); ++i) out.push_back(static_cast<float>(values[i] * sigmoid_of(gates[i])));
  return out;
}

Values silu(const Values& in) {
  return gate(in, in);
}

Values causal_conv(const Values& in, const tensor::ConvShape& shape, const Values& weight, const Values& bias) {
  const auto channels = static_cast<size_t>(shape.channels);
  const auto width = static_cast<size_t>(shape.width);
  Values out;
  for (size_t row = 0; row < in.size() / channels; ++row) {
    for (size_t c = 0; c < channels; ++c) {
      double sum = bias.empty() ? 0.0 : bias[c];
      for (size_t tap = 0; tap < width; ++tap) {
        if (row + tap + 1 >= width)
          sum += double{weight[tap * channels + c]} * in[(row + tap + 1 - width) * channels + c];
      }
      out.push_back(static_cast<float>(sum));
    }
  }
  return out;
}

Values short_conv(const Values& in, const tensor::ConvShape& shape, const Values& weight, const Values& bias) {
  const auto channels = static_cast<size_t>(shape.channels);
  Values products;
  for (size_t row = 0; row < in.size(); row += 3 * channels) {
    for (size_t c = 0; c < channels; ++c) products.push_back(in[row + c] * in[row + 2 * channels + c]);
  }
  Values out = causal_conv(products, shape, weight, bias);
  for (size_t i = 0; i < out.size(); ++i) out[i] *= in[i / channels * 3 * channels + channels + i % channels];
  return out;
}

Values delta_net(const DeltaNetInputs& inputs, const tensor::DeltaNetShape& shape, const Values& decay,
                 const Values& step_bias) {
  const Values& mixed = inputs.mixed;
  const Values& gates = inputs.gates;
  const auto heads = static_cast<size_t>(shape.value_head_count);
  const auto key_dim = static_cast<size_t>(shape.key_dim);
  const auto value_dim = static_cast<size_t>(shape.value_dim);
  const auto key_width = static_cast<size_t>(shape.key_width());
  const size_t width = 2 * key_width + heads * value_dim;
  const size_t gate_width = shape.channel_decay ? heads : 2 * heads;
  Values out(mixed.size() / width * heads * value_dim);
  for (size_t head = 0; head < heads; ++head) {
    // The decay of a row of the state.
    const auto decay_of = [&](size_t row, size_t i) {
      const size_t of_head = head * key_dim + i;
      if (!shape.channel_decay)
        return std::exp(-decay[head] * softplus_of(double{gates[row * gate_width + heads + head]} + step_bias[head]));
      const double step = double{inputs.channel_steps[row * key_width + of_head]} + step_bias[of_head];
      return std::exp(-decay[head] * softplus_of(step));
    };
    const size_t key_head = head / (heads / static_cast<size_t>(shape.key_head_count));
    std::vector<double> state(key_dim * value_dim);  // [key_dim, value_dim]
    for (size_t row = 0; row < mixed.size() / width; ++row) {
      const std::span in = std::span(mixed).subspan(row * width, width);
      const auto q = with_length(in.subspan(key_head * key_dim, key_dim), 1.0 / std::sqrt(shape.key_dim));
      const auto k = with_length(in.subspan(key_width + key_head * key_dim, key_dim), 1.0);
      const double strength = sigmoid_of(gates[row * gate_width + head]);
      for (size_t i = 0; i < key_dim; ++i) {
        const double factor = decay_of(row, i);
        for (size_t c = 0; c < value_dim; ++c) state[i * value_dim + c] *= factor;
      }
      for (size_t c = 0; c < value_dim; ++c) {
        double seen = 0.0;
        for (size_t i = 0; i < key_dim; ++i) seen += k[i] * state[i * value_dim + c];
        const double change = strength * (in[2 * key_width + head * value_dim + c] - seen);
        double sum = 0.0;
        for (size_t i = 0; i < key_dim; ++i) {
          state[i * value_dim + c] += k[i] * change;
          sum += q[i] * state[i * value_dim + c];
        }
        out[(row * heads + head) * value_dim + c] = static_cast<float>(sum);
      }
    }
  }
  return out;
}

Values state_space(const Values& mixed, const Values& steps, const tensor::StateSpaceShape& shape, const Values& decay,
                   const Values& step_bias, const Values& skip) {
  const auto heads = static_cast<size_t>(shape.head_count);
  const auto head_dim = static_cast<size_t>(shape.head_dim);
  const auto state_dim = static_cast<size_t>(shape.state_dim);
  const auto group_width = static_cast<size_t>(shape.group_width());
  const size_t inner = heads * head_dim;
  const size_t width = inner + 2 * group_width;
  Values out(mixed.size() / width * inner);
  for (size_t head = 0; head < heads; ++head) {
    const size_t group = head / (heads / static_cast<size_t>(shape.group_count));
    std::vector<double> state(head_dim * state_dim);  // [head_dim, state_dim]
    for (size_t row = 0; row < mixed.size() / width; ++row) {
      const std::span in = std::span(mixed).subspan(row * width, width);
      const std::span b = in.subspan(inner + group * state_dim, state_dim);
      const std::span c = in.subspan(inner + group_width + group * state_dim, state_dim);
      const double step = std::clamp(softplus_of(double{steps[row * heads + head]} + step_bias[head]),
                                     double{shape.min_step}, double{shape.max_step});
      for (size_t p = 0; p < head_dim; ++p) {
        const double x = in[head * head_dim + p];
        double sum = skip[head] * x;
        for (size_t n = 0; n < state_dim; ++n) {
          double& value = state[p * state_dim + n];
          value = value * std::exp(-decay[head] * step) + step * x * b[n];
          sum += value * c[n];
        }
        out[row * inner + head * head_dim + p] = static_cast<float>(sum);
      }
    }
  }
  return out;
}

Values gated_rms_norm(const Values& in, const Values& gates, int64_t width, const Values& weight,
                      const GatedNorm& norm) {
  Values scaled_gates;
  for (const float gate : gates) scaled_gates.push_back(static_cast<float>(norm.gate_factor * gate));
  const Values factors = norm.sigmoid ? gate(Values(gates.size(), 1.0f), gates) : silu(scaled_gates);
  Values scaled = in;
  for (size_t i = 0; i < in.size() && (norm.gate_first || weight.empty()); ++i) scaled[i] *= factors[i];
  if (weight.empty()) return scaled;
  const auto group = static_cast<size_t>(norm.group);
  Values out;
  for (size_t first = 0; first < in.size(); first += group) {
    double squares = 0.0;
    for (size_t i = first; i < first + group; ++i) squares += double{scaled[i]} * scaled[i];
    const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(group) + norm.epsilon);
    for (size_t i = first; i < first + group; ++i) {
      const double value = scaled[i] * inverse * weight[i % static_cast<size_t>(width) % weight.size()];
      out.push_back(static_cast<float>(norm.gate_first ? value : value * factors[i]));
    }
  }
  return out;
}

}  // namespace millrace::reference
