#include "server/pooling_model.h"

#include <cmath>
#include <numbers>
#include <utility>

#include "base/check.h"

namespace millrace::server {
namespace {

/// Sums in f64: the layers of a model are few, and its vectors short.
double dot(std::span<const float> left, std::span<const float> right) {
  CHECK(left.size() == right.size(), "vectors of {} and {} numbers", left.size(), right.size());
  double sum = 0;
  for (size_t i = 0; i < left.size(); ++i) sum += double{left[i]} * double{right[i]};
  return sum;
}

std::vector<float> apply_layers(const std::vector<DenseLayer>& layers, std::vector<float> vector) {
  for (const DenseLayer& layer : layers) vector = layer.apply(vector);
  return vector;
}

}  // namespace

float activate(Activation activation, float value) {
  switch (activation) {
    case Activation::kIdentity: return value;
    case Activation::kSigmoid: return 1.0f / (1.0f + std::exp(-value));
    case Activation::kTanh: return std::tanh(value);
    case Activation::kRelu: return value > 0 ? value : 0.0f;
    case Activation::kGelu: break;
  }
  return 0.5f * value * (1.0f + std::erf(value * (std::numbers::sqrt2_v<float> / 2)));
}

std::vector<float> DenseLayer::apply(std::span<const float> input) const {
  CHECK(!input.empty() && weights.size() % input.size() == 0, "{} weights for {} inputs", weights.size(), input.size());
  std::vector<float> output(weights.size() / input.size());
  for (size_t i = 0; i < output.size(); ++i) {
    const double sum = dot(std::span(weights).subspan(i * input.size(), input.size()), input);
    output[i] = activate(activation, static_cast<float>(sum + (bias.empty() ? 0.0 : double{bias[i]})));
  }
  return output;
}

size_t PoolingModel::width(size_t hidden_size) const {
  for (const DenseLayer& layer : layers) hidden_size = layer.weights.size() / hidden_size;
  return hidden_size;
}

std::vector<float> PoolingModel::embed(std::vector<float> pooled, uint32_t length, bool use_activation) const {
  std::vector<float> vector = apply_layers(layers, std::move(pooled));
  if (length > 0) {
    CHECK(length <= vector.size(), "a vector of {} numbers, wanted the first {}", vector.size(), length);
    vector.resize(length);
  }
  if (!normalizes || !use_activation) return vector;
  const double norm = std::sqrt(dot(vector, vector));
  if (norm == 0) return vector;
  for (float& value : vector) value = static_cast<float>(value / norm);
  return vector;
}

float PoolingModel::score(std::vector<float> pooled, bool use_activation) const {
  const std::vector<float> logits = apply_layers(layers, std::move(pooled));
  CHECK(scores && logits.size() == 1, "a score of {} logits", logits.size());
  return use_activation ? activate(score_activation, logits.front()) : logits.front();
}

float cosine(std::span<const float> left, std::span<const float> right) {
  const double norms = std::sqrt(dot(left, left)) * std::sqrt(dot(right, right));
  return norms == 0 ? 0.0f : static_cast<float>(dot(left, right) / norms);
}

}  // namespace millrace::server
