#pragma once

#include <memory>
#include <optional>

#include "model/indexer.h"
#include "model/layer_config.h"
#include "tensor/backend.h"

namespace millrace::model {

/// A rank's part of one layer's latent attention on the device. Without a low rank of queries the first three members
/// are null, and `query` takes the layer's input.
struct LatentWeights {
  std::unique_ptr<tensor::PackedWeight> query_a;       // [query_rank, hidden]
  std::unique_ptr<tensor::DeviceVector> query_a_bias;  // [query_rank]; may be null
  std::unique_ptr<tensor::DeviceVector> query_norm;    // [query_rank]
  std::unique_ptr<tensor::PackedWeight> query;         // [heads·(nope_dim + rope_dim), query_rank or hidden]
  std::unique_ptr<tensor::PackedWeight> latent;        // [latent_dim + rope_dim, hidden]
  std::unique_ptr<tensor::DeviceVector> latent_bias;   // [latent_dim + rope_dim]; may be null
  std::unique_ptr<tensor::DeviceVector> latent_norm;   // [latent_dim]
  std::unique_ptr<tensor::LatentExpansion> expansion;  // of the rank's heads
  std::unique_ptr<IndexerWeights> indexer;             // null: the layer has none of its own
};

/// Returns the dimensions of a layer's latent attention over `head_count` heads.
[[nodiscard]] tensor::LatentShape latent_shape(const AttentionConfig& attention, int32_t head_count);

/// The projections of latent attention, with the scratch that all layers of a stage share. Owned by a StageModel and
/// used inside submitted work.
class LatentProjection {
 public:
  /// One layer: `cache_layer` is its index in the cache.
  struct Layer {
    const LatentWeights& weights;
    const LatentConfig& config;
    tensor::LatentShape shape;
    tensor::RotaryTable rotary;
    int32_t cache_layer = 0;
  };

  /// Allocates scratch for `rows` rows of layers of this shape, of which `tail_rows` may go on from the last layer.
  LatentProjection(tensor::Backend& backend, const LatentConfig& config, const tensor::LatentShape& shape, int64_t rows,
                   int64_t tail_rows);

  /// Stores the latents of all rows of `input` (compute) [T, hidden] and returns their queries (f32)
  /// [T, heads·(nope_dim + rope_dim)], valid until the next call. A layer's own indexer also chooses what they see.
  [[nodiscard]] tensor::Matrix project(const Layer& layer, tensor::Matrix input, const tensor::UploadedBatch& batch,
                                       tensor::KvCache& cache);
  /// Returns the indexer; null where layers have none.
  [[nodiscard]] Indexer* indexer() { return indexer_ ? &*indexer_ : nullptr; }

 private:
  tensor::Backend& backend_;
  tensor::Buffer low_rank_;         // f32     [rows, query_rank]
  tensor::Buffer low_rank_normed_;  // compute [rows, query_rank]
  tensor::Buffer query_;            // f32     [rows, heads·(nope_dim + rope_dim)]
  tensor::Buffer latent_;           // f32     [rows, latent_dim + rope_dim]
  std::optional<Indexer> indexer_;
};

}  // namespace millrace::model
