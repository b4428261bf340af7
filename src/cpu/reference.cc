#include "cpu/reference.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <cstring>
#include <span>

#include "base/check.h"

namespace millrace::reference {

using tensor::DType;

Values to_floats(const tensor::HostTensor& tensor) {
  Values values(static_cast<size_t>(tensor.shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    const std::byte* from = tensor.data + i * tensor::size_of(tensor.dtype);
    uint16_t half = 0;
    if (tensor.dtype != DType::kF32) std::memcpy(&half, from, sizeof(half));
    switch (tensor.dtype) {
      case DType::kF32: std::memcpy(&values[i], from, sizeof(float)); break;
      case DType::kBF16: values[i] = tensor::BFloat16{half}.to_float(); break;
      case DType::kF16: values[i] = tensor::Float16{half}.to_float(); break;
    }
  }
  return values;
}

Values to_floats(const tensor::CodeMatrix& matrix) {
  Values values(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t row = 0; row < matrix.rows; ++row)
    tensor::read_floats(matrix, row, 0, matrix.cols, values.data() + row * matrix.cols);
  return values;
}

Values to_floats(const tensor::W8Matrix& matrix) {
  Values values;
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t col = 0; col < matrix.cols; ++col) {
      const float scale = matrix.scale(row, matrix.per_channel_scales ? 0 : col / tensor::kW8Group);
      values.push_back(scale * static_cast<float>(static_cast<int8_t>(matrix.values[row * matrix.cols + col])));
    }
  }
  return values;
}

Values rounded(Values values, DType dtype) {
  CHECK(dtype != DType::kF16, "no value is rounded to f16");
  if (dtype == DType::kBF16) {
    for (float& value : values) value = tensor::BFloat16::from_float(value).to_float();
  }
  return values;
}

Values rounded_to_int8(const Values& rows, int64_t width, int64_t group_size) {
  Values out;
  for (size_t row = 0; row < rows.size(); row += static_cast<size_t>(width)) {
    for (int64_t first = 0; first < width; first += group_size) {
      const std::span group(rows.data() + row + first, static_cast<size_t>(std::min(group_size, width - first)));
      float largest = 0.0f;
      for (const float value : group) largest = std::max(largest, std::abs(value));
      const float inverse = 127.0f / largest;
      const float scale = largest / 127.0f;
      for (const float value : group) out.push_back(largest > 0.0f ? std::nearbyint(value * inverse) * scale : 0.0f);
    }
  }
  return out;
}

namespace {

/// Returns the smallest bf16 number that is not below `value`, which is positive.
float bf16_not_below(float value) {
  int exponent = 0;
  const float mantissa = std::frexp(value, &exponent);
  return std::ldexp(std::ceil(std::ldexp(mantissa, 8)), exponent - 8);
}

/// Returns the E4M3 number that is nearest to `value`; zero instead of subnormal numbers.
float nearest_e4m3(float value) {
  int exponent = 0;
  (void)std::frexp(value, &exponent);
  const float step = std::ldexp(1.0f, exponent - 4);
  const float nearest = std::clamp(std::nearbyint(value / step) * step, -448.0f, 448.0f);
  return std::abs(nearest) < 0x1p-6f ? 0.0f : nearest;
}

}  // namespace

Values rounded_to_kv(Values values, int64_t head_dim, tensor::KvDType stored) {
  if (stored == tensor::KvDType::kAuto) return values;
  const bool is_int8 = stored == tensor::KvDType::kInt8;
  const int64_t of_scale = is_int8 ? 32 : head_dim;
  for (size_t head = 0; head < values.size(); head += static_cast<size_t>(head_dim)) {
    for (int64_t first = 0; first < head_dim; first += of_scale) {
      const std::span part(values.data() + head + first, static_cast<size_t>(std::min(of_scale, head_dim - first)));
      float largest = 0.0f;
      for (const float value : part) largest = std::max(largest, std::abs(value));
      const float scale = largest < 0x1p-100f ? 0.0f : bf16_not_below(largest / (is_int8 ? 127.0f : 448.0f));
      for (float& value : part) {
        const float code = scale == 0.0f ? 0.0f : is_int8 ? std::nearbyint(value / scale) : nearest_e4m3(value / scale);
        value = code * scale;
      }
    }
  }
  return values;
}

Values matmul_int8(const Values& x, const tensor::W8Matrix& matrix) {
  const auto cols = static_cast<size_t>(matrix.cols);
  Values out;
  std::vector<int64_t> whole(cols);
  for (size_t row = 0; row < x.size(); row += cols) {
    float largest = 0.0f;
    for (size_t i = 0; i < cols; ++i) largest = std::max(largest, std::abs(x[row + i]));
    const bool is_zero = largest < 0x1p-100f;
    const float inverse = 127.0f / largest;
    const float scale = is_zero ? 0.0f : largest / 127.0f;
    for (size_t i = 0; i < cols; ++i) {
      whole[i] = is_zero ? 0 : static_cast<int64_t>(std::nearbyint(x[row + i] * inverse));
    }
    for (int64_t feature = 0; feature < matrix.rows; ++feature) {
      int64_t sum = 0;
      for (size_t i = 0; i < cols; ++i) {
        sum += whole[i] * static_cast<int8_t>(matrix.values[static_cast<size_t>(feature) * cols + i]);
      }
      out.push_back(static_cast<float>(sum) * (matrix.scale(feature, 0) * scale));
    }
  }
  return out;
}

Values embed(const tensor::HostTensor& table, std::span<const TokenId> tokens) {
  const auto width = static_cast<size_t>(table.shape[1]);
  const Values rows = to_floats(table);
  Values out(tokens.size() * width, 0.0f);
  for (size_t t = 0; t < tokens.size(); ++t) {
    if (tokens[t] < 0 || tokens[t] >= table.shape[0]) continue;
    for (size_t i = 0; i < width; ++i) out[t * width + i] = rows[static_cast<size_t>(tokens[t]) * width + i];
  }
  return out;
}

Values rms_norm(const Values& in, const Values& weight, double epsilon) {
  const size_t width = weight.size();
  Values out(in.size());
  for (size_t row = 0; row < in.size(); row += width) {
    double squares = 0.0;
    for (size_t i = 0; i < width; ++i) squares += double{in[row + i]} * double{in[row + i]};
    const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(width) + epsilon);
    for (size_t i = 0; i < width; ++i) {
      out[row + i] = static_cast<float>(double{in[row + i]} * inverse * double{weight[i]});
    }
  }
  return out;
}

Values layer_norm(const Values& in, const Values& weight, const Values& bias, double epsilon) {
  const size_t width = weight.size();
  Values out(in.size());
  for (size_t row = 0; row < in.size(); row += width) {
    double mean = 0.0;
    for (size_t i = 0; i < width; ++i) mean += double{in[row + i]} / static_cast<double>(width);
    double variance = 0.0;
    for (size_t i = 0; i < width; ++i) {
      variance += (double{in[row + i]} - mean) * (double{in[row + i]} - mean) / static_cast<double>(width);
    }
    const double inverse = 1.0 / std::sqrt(variance + epsilon);
    for (size_t i = 0; i < width; ++i) {
      out[row + i] = static_cast<float>((double{in[row + i]} - mean) * inverse * double{weight[i]} + double{bias[i]});
    }
  }
  return out;
}

Values gelu(const Values& in) {
  Values out;
  for (const double x : in) out.push_back(static_cast<float>(0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)))));
  return out;
}

Values gelu_tanh_mul(const Values& gate, const Values& up) {
  Values out;
  for (size_t i = 0; i < gate.size(); ++i) {
    const double x = gate[i];
    const double inner = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
    out.push_back(static_cast<float>(0.5 * x * (1.0 + std::tanh(inner)) * double{up[i]}));
  }
  return out;
}

Values scaled_silu_mul(const Values& gate, const Values& up, double factor) {
  Values out;
  for (size_t i = 0; i < gate.size(); ++i) {
    const double x = factor * gate[i];
    out.push_back(static_cast<float>(x / (1.0 + std::exp(-x)) * double{up[i]}));
  }
  return out;
}

Values relu_squared(const Values& in) {
  Values out;
  for (const float x : in) out.push_back(std::max(x, 0.0f) * std::max(x, 0.0f));
  return out;
}

Values soft_cap(const Values& in, double cap) {
  Values out;
  for (const double x : in) out.push_back(static_cast<float>(cap * std::tanh(x / cap)));
  return out;
}

Values matmul(const Values& x, const Values& weight, const Values& bias, int64_t k, int64_t n) {
  const auto inner = static_cast<size_t>(k);
  const auto features = static_cast<size_t>(n);
  const size_t rows = x.size() / inner;
  Values out(rows * features);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t feature = 0; feature < features; ++feature) {
      double sum = bias.empty() ? 0.0 : double{bias[feature]};
      for (size_t i = 0; i < inner; ++i) sum += double{x[row * inner + i]} * double{weight[feature * inner + i]};
      out[row * features + feature] = static_cast<float>(sum);
    }
  }
  return out;
}

void rotate(std::span<float> head, const Values& inverse_frequency, float attention_factor, int64_t position) {
  const size_t half = inverse_frequency.size();
  for (size_t i = 0; i < half; ++i) {
    // The angle is an f32 product by definition; only its cos and sin are exact.
    const float angle = static_cast<float>(position) * inverse_frequency[i];
    const double cos = std::cos(double{angle}) * double{attention_factor};
    const double sin = std::sin(double{angle}) * double{attention_factor};
    const double x = head[i];
    const double y = head[i + half];
    head[i] = static_cast<float>(x * cos - y * sin);
    head[i + half] = static_cast<float>(y * cos + x * sin);
  }
}

double query_factor(double beta, int64_t period, int64_t position) {
  return 1.0 + beta * std::log(1.0 + std::floor(static_cast<double>(position) / static_cast<double>(period)));
}

Values attention(std::span<const float> q, int64_t position, const History& history, const AttentionSizes& sizes) {
  const auto dim = static_cast<size_t>(sizes.head_dim);
  const auto kv_heads = static_cast<size_t>(sizes.kv_head_count);
  const auto heads = static_cast<size_t>(sizes.head_count);
  int64_t first = sizes.sliding_window > 0 ? std::max<int64_t>(0, position - sizes.sliding_window + 1) : 0;
  if (sizes.chunk_size > 0) first = position / sizes.chunk_size * sizes.chunk_size;
  Values out(heads * dim);
  for (size_t head = 0; head < heads; ++head) {
    const size_t kv_head = head / (heads / kv_heads);
    std::vector<double> weights;
    for (int64_t key = first; key <= position; ++key) {
      const float* k = history.keys.data() + (static_cast<size_t>(key) * kv_heads + kv_head) * dim;
      double score = 0.0;
      for (size_t i = 0; i < dim; ++i) score += double{q[head * dim + i]} * double{k[i]};
      score *= sizes.scale;
      weights.push_back(sizes.soft_cap > 0.0 ? sizes.soft_cap * std::tanh(score / sizes.soft_cap) : score);
    }
    double max = *std::max_element(weights.begin(), weights.end());
    if (!sizes.sinks.empty()) max = std::max(max, double{sizes.sinks[head]});
    double sum = sizes.sinks.empty() ? 0.0 : std::exp(double{sizes.sinks[head]} - max);
    for (double& weight : weights) sum += weight = std::exp(weight - max);
    for (size_t i = 0; i < dim; ++i) {
      double value = 0.0;
      for (int64_t key = first; key <= position; ++key) {
        value += weights[static_cast<size_t>(key - first)] *
                 double{history.values[(static_cast<size_t>(key) * kv_heads + kv_head) * dim + i]};
      }
      out[head * dim + i] = static_cast<float>(value / sum);
    }
  }
  return out;
}

Values latent_attention(std::span<const float> q, int64_t position, const LatentHistory& history, const Values& kv_b,
                        const tensor::LatentShape& shape) {
  const auto nope = static_cast<size_t>(shape.nope_dim);
  const auto rope = static_cast<size_t>(shape.rope_dim);
  const auto latent = static_cast<size_t>(shape.latent_dim);
  const auto tokens = static_cast<size_t>(position) + 1;
  const Values known(history.latents.begin(), history.latents.begin() + static_cast<std::ptrdiff_t>(tokens * latent));
  const int64_t rows = shape.nope_dim + shape.value_dim;
  Values out;
  for (int32_t head = 0; head < shape.head_count; ++head) {
    const auto first = kv_b.begin() + head * rows * shape.latent_dim;
    const Values expanded =
        matmul(known, {first, first + rows * shape.latent_dim}, {}, shape.latent_dim, rows);  // [tokens, nope + value]
    const float* const own = q.data() + static_cast<size_t>(head) * (nope + rope);
    std::vector<double> weights;
    for (size_t key = 0; key < tokens; ++key) {
      double score = 0.0;
      for (size_t i = 0; i < nope; ++i) score += double{own[i]} * double{expanded[key * static_cast<size_t>(rows) + i]};
      for (size_t i = 0; i < rope; ++i) score += double{own[nope + i]} * double{history.keys[key * rope + i]};
      weights.push_back(score * double{shape.scale});
    }
    const double max = *std::max_element(weights.begin(), weights.end());
    double sum = 0.0;
    for (double& weight : weights) sum += weight = std::exp(weight - max);
    for (size_t i = 0; i < static_cast<size_t>(shape.value_dim); ++i) {
      double value = 0.0;
      for (size_t key = 0; key < tokens; ++key)
        value += weights[key] * double{expanded[key * static_cast<size_t>(rows) + nope + i]};
      out.push_back(static_cast<float>(value / sum));
    }
  }
  return out;
}

Values index_scores(std::span<const float> q, std::span<const float> weights, const Values& keys, int64_t head_dim) {
  const auto dim = static_cast<size_t>(head_dim);
  Values scores;
  for (size_t key = 0; key < keys.size(); key += dim) {
    double score = 0.0;
    for (size_t head = 0; head < weights.size(); ++head) {
      double product = 0.0;
      for (size_t i = 0; i < dim; ++i) product += double{q[head * dim + i]} * double{keys[key + i]};
      score += double{weights[head]} * std::max(product, 0.0);
    }
    scores.push_back(static_cast<float>(score));
  }
  return scores;
}

}  // namespace millrace::reference
