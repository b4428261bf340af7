#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/cache_groups.h"
#include "model/config.h"
#include "model/layer_range.h"
#include "model/layer_runner.h"
#include "model/rank_layout.h"
#include "tensor/backend.h"

namespace millrace::model {

/// A layer's cache group, and its number among the stage's layers there.
struct CacheLayer {
  size_t group = 0;
  int32_t layer = 0;
};

/// The caches of a stage's layers on one rank, one per cache group, and where each layer has its part. Layers are
/// numbered within the stage. Owned by a StageModel, whose rules of calls hold; what the constructor takes outlives it.
class StageCaches {
 public:
  StageCaches(const ModelConfig& config, LayerRange range, tensor::Backend& backend, const RankLayout& layout);

  [[nodiscard]] const CacheGroups& groups() const { return groups_; }
  /// Returns whether a layer of the stage is in a cache group.
  [[nodiscard]] bool has_cache(size_t group) const { return layer_counts_[group] > 0; }
  /// Returns the last layer with keys and values, or states, of its own.
  [[nodiscard]] int32_t last_storing() const { return last_storing_; }
  /// Returns the shape of a group's cache. That of a stage without layers has pages without bytes.
  [[nodiscard]] tensor::KvCacheShape shape(int32_t page_size, int32_t page_count, size_t group) const;
  /// Returns the bytes per page of a group's cache; 0 if no layer of the stage is in the group.
  [[nodiscard]] uint64_t page_bytes(int32_t page_size, size_t group) const;

  /// Replaces the caches by new ones.
  void allocate(int32_t page_size, std::span<const uint32_t> page_counts);  // [groups]
  void clear() { caches_.clear(); }
  [[nodiscard]] tensor::KvCache& cache(size_t group) const;
  /// Returns where a layer keeps keys and values, and states, of its own.
  [[nodiscard]] std::vector<CacheLayer> own_layers(int32_t index) const;
  /// Returns a layer's caches for rows whose batches [groups] have the groups' pages.
  [[nodiscard]] LayerCaches of_layer(int32_t index, std::span<const tensor::UploadedBatch> batches,
                                     tensor::Matrix inputs) const;

 private:
  /// The caches of a layer of the stage, if it has attention and a recurrent mixer.
  struct CachesOfLayer {
    std::optional<CacheLayer> attention;
    std::optional<CacheLayer> states;
    bool shares_keys = false;  ///< attention sees those of another layer
  };

  const ModelConfig& config_;
  const LayerRange range_;
  tensor::Backend& backend_;
  const RankLayout& layout_;
  const CacheGroups groups_;
  std::vector<CachesOfLayer> layers_;  // [layers of the stage]
  std::vector<int32_t> layer_counts_;  // [groups]: layers of the stage
  int32_t last_storing_ = 0;
  std::vector<std::unique_ptr<tensor::KvCache>> caches_;  // [groups]; null for a group without layers here
};

}  // namespace millrace::model
