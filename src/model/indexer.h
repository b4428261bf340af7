#pragma once

#include <memory>

#include "model/config.h"
#include "tensor/backend.h"

namespace millrace::model {

/// The weights of one layer's indexer on the device. Every rank has all of them.
struct IndexerWeights {
  std::unique_ptr<tensor::PackedWeight> query;      // [heads·head_dim, query_rank]
  std::unique_ptr<tensor::PackedWeight> key;        // [head_dim, hidden]
  std::unique_ptr<tensor::DeviceVector> norm;       // [head_dim]
  std::unique_ptr<tensor::DeviceVector> norm_bias;  // [head_dim]
  std::unique_ptr<tensor::PackedWeight> weights;    // [heads, hidden]
};

/// Returns the dimensions of an indexer for the backend's ops.
[[nodiscard]] tensor::IndexerShape indexer_shape(const IndexerConfig& config, int32_t rope_dim);
/// Returns that of a model's layers, which are alike; without heads if it has no indexers.
[[nodiscard]] tensor::IndexerShape indexer_shape(const ModelConfig& config);
/// Returns BatchLayout::padded_context for an indexer that chooses `chosen` tokens: few values, since each has graphs
/// of its own.
[[nodiscard]] int32_t padded_context(const tensor::BatchLayout& batch, int32_t chosen);

/// Computes which tokens the rows of a pass see, with the scratch that all layers of a stage share. Layers that share a
/// choice see the last one. Owned by a StageModel and used inside submitted work.
class Indexer {
 public:
  /// One layer: `cache_layer` is its index in the cache.
  struct Layer {
    const IndexerWeights& weights;
    const IndexerConfig& config;
    const tensor::RotaryTable& rotary;
    int32_t cache_layer = 0;
  };

  /// Allocates scratch for `rows` rows, of which `tail_rows` may go on from the last layer.
  Indexer(tensor::Backend& backend, const IndexerConfig& config, int64_t rows, int64_t tail_rows);

  /// Stores the keys of all rows of `input` (compute) [T, hidden], and chooses the tokens that they see. `low_rank`
  /// (compute) [T, query_rank] is what the attention's queries are made of.
  void choose(const Layer& layer, tensor::Matrix input, tensor::Matrix low_rank, const tensor::UploadedBatch& batch,
              tensor::KvCache& cache);
  /// Returns the last choice; without columns where each of a batch's rows sees all tokens.
  [[nodiscard]] tensor::IntMatrix chosen(const tensor::BatchLayout& batch) const;
  /// Returns some rows of a choice, valid until the next call.
  [[nodiscard]] tensor::IntMatrix gather(tensor::IntMatrix chosen, const tensor::UploadedIndices& rows);

 private:
  tensor::Backend& backend_;
  const int32_t chosen_count_;
  tensor::Buffer query_;        // f32 [rows, heads·head_dim]
  tensor::Buffer key_;          // f32 [rows, head_dim]
  tensor::Buffer weights_;      // f32 [rows, heads]
  tensor::Buffer chosen_;       // int32 [rows, chosen_count]
  tensor::Buffer tail_chosen_;  // int32 [tail_rows, chosen_count]
};

}  // namespace millrace::model
