#include "model/stage_caches.h"

#include <algorithm>

#include "base/check.h"
#include "model/layer_state.h"

namespace millrace::model {

StageCaches::StageCaches(const ModelConfig& config, LayerRange range, tensor::Backend& backend,
                         const RankLayout& layout)
    : config_(config),
      range_(range),
      backend_(backend),
      layout_(layout),
      groups_(config),
      layer_counts_(groups_.count()) {
  for (int32_t layer = range_.begin; layer < range_.end; ++layer) {
    const auto next_in = [this](std::optional<size_t> group) -> std::optional<CacheLayer> {
      if (!group) return std::nullopt;
      return CacheLayer{.group = *group, .layer = layer_counts_[*group]++};
    };
    CachesOfLayer& own = layers_.emplace_back();
    own.states = next_in(groups_.state_group(layer));
    const std::optional<int32_t> source = config_.layer(layer).attention.keys_of;
    own.shares_keys = source.has_value();
    if (!source) {
      own.attention = next_in(groups_.attention_group(layer));
      if (own.attention || own.states) last_storing_ = layer - range_.begin;
      continue;
    }
    if (*source < range_.begin) {
      // A layer that is timed by itself sees pages that nothing writes. Rings have no such stage: see check_borders.
      own.attention = next_in(groups_.attention_group(layer));
      continue;
    }
    own.attention = layers_[static_cast<size_t>(*source - range_.begin)].attention;
  }
}

tensor::KvCacheShape StageCaches::shape(int32_t page_size, int32_t page_count, size_t group) const {
  if (groups_.kind(group) == GroupKind::kState) {
    tensor::KvCacheShape states{.layer_count = layer_counts_[group], .page_size = page_size, .page_count = page_count};
    for (const LayerConfig& layer : config_.layers) {
      states.state_values = std::max(states.state_values, state_values(layer, layout_.position.size));
    }
    return states;
  }
  // The layers of a group have equal heads. A stage without layers has pages without bytes.
  const int32_t layer = groups_.first_layer(group);
  const LayerLayout& layout = layout_.layer(layer);
  tensor::KvCacheShape shape{.layer_count = layer_counts_[group],
                             .kv_head_count = layout.kv_head_count(),
                             .head_dim = layout.head_dim,
                             .page_size = page_size,
                             .page_count = page_count};
  const AttentionConfig& attention = config_.layer(layer).attention;
  if (attention.latent) {
    const tensor::LatentShape latent = latent_shape(attention, layout.head_count());
    shape.head_dim = latent.key_dim();
    shape.latent_dim = latent.latent_dim;
    if (attention.latent->indexer) shape.index_dim = attention.latent->indexer->head_dim;
  }
  return shape;
}

uint64_t StageCaches::page_bytes(int32_t page_size, size_t group) const {
  return has_cache(group) ? backend_.kv_page_bytes(shape(page_size, 0, group)) : 0;
}

void StageCaches::allocate(int32_t page_size, std::span<const uint32_t> page_counts) {
  CHECK(page_counts.size() == groups_.count(), "{} page counts for {} cache groups", page_counts.size(),
        groups_.count());
  caches_.clear();
  caches_.resize(groups_.count());
  for (size_t group = 0; group < groups_.count(); ++group) {
    if (!has_cache(group)) continue;
    caches_[group] = backend_.make_kv_cache(shape(page_size, static_cast<int32_t>(page_counts[group]), group));
  }
}

tensor::KvCache& StageCaches::cache(size_t group) const {
  CHECK(group < caches_.size() && caches_[group] != nullptr, "the cache of group {} is not allocated", group);
  return *caches_[group];
}

std::vector<CacheLayer> StageCaches::own_layers(int32_t index) const {
  const CachesOfLayer& own = layers_[static_cast<size_t>(index)];
  std::vector<CacheLayer> layers;
  if (own.attention && !own.shares_keys) layers.push_back(*own.attention);
  if (own.states) layers.push_back(*own.states);
  return layers;
}

LayerCaches StageCaches::of_layer(int32_t index, std::span<const tensor::UploadedBatch> batches,
                                  tensor::Matrix inputs) const {
  const auto at = [&](const std::optional<CacheLayer>& layer) -> std::optional<LayerCache> {
    if (!layer) return std::nullopt;
    return LayerCache{.batch = batches[layer->group], .cache = cache(layer->group), .layer = layer->layer};
  };
  const CachesOfLayer& own = layers_[static_cast<size_t>(index)];
  return {.batch = batches.front(), .attention = at(own.attention), .states = at(own.states), .inputs = inputs};
}

}  // namespace millrace::model
