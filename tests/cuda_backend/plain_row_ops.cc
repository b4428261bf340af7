// The launch functions of cuda/row_kernels.h as plain loops; see plain_kernels.cc.

#include <cmath>

#include "cuda/emulator/emulator.h"
#include "cuda/row_kernels.h"
#include "cuda_backend/plain_numbers.h"

namespace millrace::cuda {
namespace {

float sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

/// Calls each(index of the element, row, column) for all elements, when the stream gets there.
template <class Each>
void enqueue_elements(cudaStream_t stream, int32_t rows, int32_t width, const Each& each) {
  emulator::emulated_enqueue(stream, [=] {
    for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
      for (size_t i = 0; i < static_cast<size_t>(width); ++i) each(row * static_cast<size_t>(width) + i, row, i);
    }
  });
}

float inverse_root_of_mean_square(const float* values, int32_t width, float epsilon) {
  float squares = 0.0f;
  for (int32_t i = 0; i < width; ++i) squares += values[i] * values[i];
  return 1.0f / std::sqrt(squares / static_cast<float>(width) + epsilon);
}

/// Normalises a row to mean 0 and variance 1.
std::vector<float> standardized(const float* row, int32_t width, float epsilon) {
  double mean = 0.0;
  for (int32_t i = 0; i < width; ++i) mean += static_cast<double>(row[i]) / width;
  double variance = 0.0;
  for (int32_t i = 0; i < width; ++i) variance += std::pow(static_cast<double>(row[i]) - mean, 2.0) / width;
  const double inverse = 1.0 / std::sqrt(variance + static_cast<double>(epsilon));
  std::vector<float> values;
  for (int32_t i = 0; i < width; ++i)
    values.push_back(static_cast<float>((static_cast<double>(row[i]) - mean) * inverse));
  return values;
}

}  // namespace

void matmul_f32(cudaStream_t stream, const void* x, const float* weight, const float* bias, int32_t rows,
                int32_t inputs, int32_t features, void* out, OutputType type) {
  const auto inner = static_cast<size_t>(inputs);
  enqueue_elements(stream, rows, features, [=](size_t at, size_t row, size_t feature) {
    float sum = bias == nullptr ? 0.0f : bias[feature];
    for (size_t i = 0; i < inner; ++i) sum += to_float(bf16(x)[row * inner + i]) * weight[feature * inner + i];
    if (type == OutputType::kF32) {
      static_cast<float*>(out)[at] = sum;
    } else {
      bf16(out)[at] = to_bf16(sum);
    }
  });
}

void add_embedding(cudaStream_t stream, const void* table, int32_t vocab, int32_t width, const int32_t* indices,
                   int32_t rows, float* hidden) {
  enqueue_elements(stream, rows, width, [=](size_t at, size_t row, size_t i) {
    if (indices[row] < 0 || indices[row] >= vocab) return;
    hidden[at] += to_float(bf16(table)[static_cast<size_t>(indices[row] * width) + i]);
  });
}

void layer_norm(cudaStream_t stream, float* hidden, const float* weight, const float* bias, float epsilon,
                bool in_place, int32_t rows, int32_t width, void* out) {
  emulator::emulated_enqueue(stream, [=] {
    for (int32_t row = 0; row < rows; ++row) {
      float* const values = hidden + row * width;
      const std::vector<float> normed = standardized(values, width, epsilon);
      for (int32_t i = 0; i < width; ++i) {
        const float value = normed[static_cast<size_t>(i)] * weight[i] + (bias == nullptr ? 0.0f : bias[i]);
        bf16(out)[row * width + i] = to_bf16(value);
        if (in_place) values[i] = value;
      }
    }
  });
}

void rms_norm_columns(cudaStream_t stream, float* values, int32_t rows, int32_t stride, int32_t first, int32_t width,
                      const float* weight, float epsilon) {
  emulator::emulated_enqueue(stream, [=] {
    for (int32_t row = 0; row < rows; ++row) {
      float* const own = values + row * stride + first;
      const float inverse = inverse_root_of_mean_square(own, width, epsilon);
      for (int32_t i = 0; i < width; ++i) own[i] *= inverse * weight[i];
    }
  });
}

void scale(cudaStream_t stream, float* values, int32_t rows, int32_t width, float factor) {
  enqueue_elements(stream, rows, width, [=](size_t at, size_t, size_t) { values[at] *= factor; });
}

void soft_cap(cudaStream_t stream, float* values, int32_t rows, int32_t width, float cap) {
  enqueue_elements(stream, rows, width,
                   [=](size_t at, size_t, size_t) { values[at] = cap * std::tanh(values[at] / cap); });
}

void gelu(cudaStream_t stream, const float* in, int32_t rows, int32_t width, void* out) {
  enqueue_elements(stream, rows, width, [=](size_t at, size_t, size_t) {
    bf16(out)[at] = to_bf16(0.5f * in[at] * (1.0f + std::erf(in[at] / std::sqrt(2.0f))));
  });
}

void gelu_tanh_mul(cudaStream_t stream, const float* in, int32_t rows, int32_t width, void* out) {
  enqueue_elements(stream, rows, width, [=](size_t at, size_t row, size_t i) {
    const float* const gate = in + row * 2 * static_cast<size_t>(width) + i;
    const float x = gate[0];
    const float value = 0.5f * x * (1.0f + std::tanh(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    bf16(out)[at] = to_bf16(value * gate[width]);
  });
}

void gelu_tanh_gate(cudaStream_t stream, const float* gates, const float* factors, int32_t factor_stride, int32_t rows,
                    int32_t width, void* out) {
  enqueue_elements(stream, rows, width, [=](size_t at, size_t row, size_t i) {
    const float x = gates[at];
    const float value = 0.5f * x * (1.0f + std::tanh(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    bf16(out)[at] = to_bf16(value * factors[row * static_cast<size_t>(factor_stride) + i]);
  });
}

void scaled_silu_mul(cudaStream_t stream, const float* in, float factor, int32_t rows, int32_t width, void* out) {
  enqueue_elements(stream, rows, width, [=](size_t at, size_t row, size_t i) {
    const float* const both = in + row * 2 * static_cast<size_t>(width) + i;
    const float x = factor * both[0];
    bf16(out)[at] = to_bf16(x * sigmoid(x) * both[width]);
  });
}

void relu_squared(cudaStream_t stream, const float* in, int32_t rows, int32_t width, void* out) {
  enqueue_elements(stream, rows, width,
                   [=](size_t at, size_t, size_t) { bf16(out)[at] = to_bf16(in[at] < 0.0f ? 0.0f : in[at] * in[at]); });
}

void gate(cudaStream_t stream, void* values, const float* gates, int32_t rows, int32_t width) {
  enqueue_elements(stream, rows, width, [=](size_t at, size_t, size_t) {
    bf16(values)[at] = to_bf16(to_float(bf16(values)[at]) * sigmoid(gates[at]));
  });
}

void add_gated_sums(cudaStream_t stream, const float* sums, const float* gates, int32_t rows, int32_t width,
                    float* hidden) {
  enqueue_elements(stream, rows, width,
                   [=](size_t at, size_t row, size_t) { hidden[at] += sigmoid(gates[row]) * sums[at]; });
}

void add_scaled_sums(cudaStream_t stream, const float* sums, const float* bias, const float* norm, float epsilon,
                     float factor, int32_t rows, int32_t width, float* hidden) {
  emulator::emulated_enqueue(stream, [=] {
    for (int32_t row = 0; row < rows; ++row) {
      std::vector<float> values(sums + row * width, sums + (row + 1) * width);
      for (size_t i = 0; bias != nullptr && i < values.size(); ++i) values[i] += bias[i];
      if (norm != nullptr) {
        const float inverse = inverse_root_of_mean_square(values.data(), width, epsilon);
        for (size_t i = 0; i < values.size(); ++i) values[i] *= inverse * norm[i];
      }
      for (size_t i = 0; i < values.size(); ++i) hidden[static_cast<size_t>(row * width) + i] += factor * values[i];
    }
  });
}

}  // namespace millrace::cuda
