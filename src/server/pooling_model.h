#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sched/plan/pooling.h"
#include "server/rerank_template.h"

namespace millrace::server {

/// A function of one number, after a dense layer or a score.
enum class Activation : uint8_t { kIdentity, kSigmoid, kTanh, kRelu, kGelu };
[[nodiscard]] float activate(Activation activation, float value);

/// A dense layer after the pooling: out = activation(W·x + bias).
struct DenseLayer {
  std::vector<float> weights;  // [outputs, inputs]
  std::vector<float> bias;     // [outputs]; empty: none
  Activation activation = Activation::kIdentity;
  [[nodiscard]] std::vector<float> apply(std::span<const float> input) const;
};

/// What becomes of the pooled rows of a prompt: a vector, or the score of a pair of texts. Immutable and shared by all
/// threads. The app makes it from the model's files.
struct PoolingModel {
  sched::Pooling pooling = sched::Pooling::kLast;
  std::vector<DenseLayer> layers;
  bool scores = false;  ///< the last layer gives the score of a pair; else the model embeds single texts
  Activation score_activation = Activation::kSigmoid;
  RerankTemplate rerank_template = RerankTemplate::kPair;
  bool normalizes = true;            ///< vectors are divided by their lengths
  bool allows_dimensions = false;    ///< vectors may be cut
  std::vector<uint32_t> dimensions;  ///< lengths that they may be cut to; empty: any

  /// Returns the length of a vector that is not cut, for pooled rows of `hidden_size`.
  [[nodiscard]] size_t width(size_t hidden_size) const;
  /// Returns the vector of pooled rows, of `dimensions` numbers (0: all), normalized if the model's files say so and
  /// `use_activation`.
  [[nodiscard]] std::vector<float> embed(std::vector<float> pooled, uint32_t dimensions, bool use_activation) const;
  /// Returns the score of a pair, with the model's activation if `use_activation`. Only if `scores`.
  [[nodiscard]] float score(std::vector<float> pooled, bool use_activation) const;
};

/// Returns the cosine of the angle between two vectors of equal length; 0 where one is zero.
[[nodiscard]] float cosine(std::span<const float> left, std::span<const float> right);

}  // namespace millrace::server
