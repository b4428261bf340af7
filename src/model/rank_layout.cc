#include "model/rank_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "tensor/w8.h"

namespace millrace::model {
namespace {

using tensor::RankPosition;
using tensor::TermRange;

constexpr std::array<int32_t, 4> kRankCounts = {1, 2, 4, 8};

/// Returns whether the weights that share a scale are groups of a row.
bool has_scale_groups(const ModelConfig& config) {
  return config.quantization != Quantization::kNone &&
         w8_scaling_of(config.quantization) != tensor::W8Scaling::kPerChannel;
}

/// Returns what prevents a rank's columns of one sum; nothing if they can be cut.
std::optional<std::string> obstacle(const ModelConfig& config, const tensor::SumShards& shards, std::string_view size) {
  const TermRange owned = shards.owned();
  const int32_t ranks = shards.position.size;
  if (owned.size() == 0) return fmt::format("{} is too small for {} ranks", size, ranks);
  if (has_scale_groups(config) && owned.begin % tensor::kW8Group != 0)
    return fmt::format("{} is cut at {} for {} ranks, inside a group of {} weights with one scale (quantization {})",
                       size, owned.begin, ranks, tensor::kW8Group, to_string(config.quantization));
  return {};
}

std::string indivisible(std::string_view name, int32_t size, int32_t ranks) {
  return fmt::format("{} {} is not a multiple of {} ranks", name, size, ranks);
}

/// Returns what prevents a rank's part of a layer's attention.
std::optional<std::string> obstacle(const ModelConfig& config, const AttentionConfig& attention,
                                    RankPosition position) {
  const int32_t ranks = position.size;
  if (attention.head_count % ranks != 0) return indivisible("num_attention_heads", attention.head_count, ranks);
  if (attention.kv_head_count % ranks != 0 && ranks % attention.kv_head_count != 0)
    return fmt::format("num_key_value_heads {} is neither a multiple nor a divisor of {} ranks",
                       attention.kv_head_count, ranks);
  if (attention.qk_norm == QkNorm::kAllHeads && ranks > 1)
    return fmt::format("the norm of q and k spans all heads, wanted 1 rank instead of {}", ranks);
  return obstacle(config, tensor::head_shards(attention.head_count, attention.head_dim, position),
                  fmt::format("o_proj's width {}", attention.query_width()));
}

/// How a recurrent mixer is divided: into equal parts, whose outputs have `width` channels each.
struct MixerParts {
  std::string_view name;
  int32_t count = 0;
  int64_t width = 0;
  int32_t group_count = 0;  ///< of parts that stay together; 0: none
};

MixerParts parts_of(const DeltaNetConfig& net) {
  return {.name = "linear_num_key_heads",
          .count = net.key_head_count,
          .width = net.value_width() / net.key_head_count,
          .group_count = 0};
}
MixerParts parts_of(const MambaConfig& mamba) {
  return {.name = "Mamba-2 head count",
          .count = mamba.head_count,
          .width = mamba.head_dim,
          .group_count = mamba.group_count};
}
MixerParts parts_of(const ShortConvConfig& conv) {
  return {.name = "hidden_size", .count = conv.width, .width = 1, .group_count = 0};
}
MixerParts parts_of(const RecurrentConfig& mixer) {
  return std::visit([](const auto& each) { return parts_of(each); }, mixer);
}

/// Returns what prevents a rank's part of a recurrent mixer.
std::optional<std::string> obstacle(const ModelConfig& config, const RecurrentConfig& mixer, RankPosition position) {
  const MixerParts parts = parts_of(mixer);
  if (parts.count % position.size != 0) return indivisible(parts.name, parts.count, position.size);
  if (parts.group_count % position.size != 0)
    return indivisible("Mamba-2 group count", parts.group_count, position.size);
  return obstacle(config, tensor::head_shards(parts.count, parts.width, position),
                  fmt::format("the mixer's width {}", parts.count * parts.width));
}

/// Returns what prevents a rank's part of a layer's feed-forward block.
std::optional<std::string> obstacle(const ModelConfig& config, const FeedForwardConfig& feed_forward,
                                    RankPosition position) {
  const int32_t width = feed_forward.inner_width();
  if (width > 0) {
    auto found =
        obstacle(config, tensor::feature_shards(width, position),
                 fmt::format("{} {}", feed_forward.moe ? "the shared expert's width" : "intermediate_size", width));
    if (found) return found;
  }
  if (!feed_forward.moe) return {};
  if (tensor::expert_shards(feed_forward.moe->expert_count, position).owned().size() > 0) return {};
  return fmt::format("{} experts are too few for {} ranks", feed_forward.moe->expert_count, position.size);
}

/// Returns what prevents `ranks` ranks; nothing if they work.
std::optional<std::string> obstacle(const ModelConfig& config, int32_t ranks) {
  if (std::ranges::find(kRankCounts, ranks) == kRankCounts.end())
    return fmt::format("{} tensor-parallel ranks, wanted 1, 2, 4 or 8", ranks);
  if (config.encoder && ranks > 1) return fmt::format("an encoder is not divided, wanted 1 rank instead of {}", ranks);
  const LayerConfig* checked = nullptr;  // most layers equal the one before
  for (const LayerConfig& layer : config.layers) {
    if (checked != nullptr && *checked == layer) continue;
    checked = &layer;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      if (auto found = obstacle(config, layer.attention, {rank, ranks})) return found;
      if (layer.recurrent) {
        if (auto found = obstacle(config, *layer.recurrent, {rank, ranks})) return found;
      }
      if (auto found = obstacle(config, layer.feed_forward, {rank, ranks})) return found;
    }
  }
  if (config.hidden_size % ranks != 0) return indivisible("hidden_size", config.hidden_size, ranks);
  return {};
}

LayerLayout layer_layout(const LayerConfig& layer, RankPosition position, RankPosition experts) {
  const auto share = [position](int64_t count) {
    return TermRange{position.rank * count / position.size, (position.rank + 1) * count / position.size};
  };
  const AttentionConfig& attention = layer.attention;
  const FeedForwardConfig& feed_forward = layer.feed_forward;
  LayerLayout layout{.heads = share(attention.head_count),
                     .kv_heads = share(attention.kv_head_count),
                     .head_dim = attention.head_dim,
                     .head_outputs = tensor::head_shards(attention.head_count, attention.head_dim, position),
                     .mixer_parts = {},
                     .mixer_outputs = {},
                     .features = tensor::feature_shards(feed_forward.inner_width(), position),
                     .experts = tensor::expert_shards(feed_forward.moe ? feed_forward.moe->expert_count : 0, experts)};
  if (layer.recurrent) {
    const MixerParts parts = parts_of(*layer.recurrent);
    layout.mixer_parts = share(parts.count);
    layout.mixer_outputs = tensor::head_shards(parts.count, parts.width, position);
  }
  if (attention.kv_head_count < position.size) layout.kv_heads.end = layout.kv_heads.begin + 1;
  return layout;
}

}  // namespace

TermRange RankLayout::part(Division division, int32_t index, int64_t size) const {
  if (division == Division::kNone) return {0, size};
  if (division == Division::kVocabularyRows) return vocabulary;
  const LayerLayout& own = layer(index);
  switch (division) {
    case Division::kHeadRows:
    case Division::kHeadColumns: {
      const int64_t of_head = size / (own.heads.size() * position.size);
      return {own.heads.begin * of_head, own.heads.end * of_head};
    }
    case Division::kHeads: return own.heads;
    case Division::kMixerRows:
    case Division::kMixerColumns: {
      const int64_t count = own.mixer_parts.size() * position.size;
      return {own.mixer_parts.begin * size / count, own.mixer_parts.end * size / count};
    }
    case Division::kKvHeadRows: return {own.kv_heads.begin * own.head_dim, own.kv_heads.end * own.head_dim};
    case Division::kFeatureRows:
    case Division::kFeatureColumns: return own.features.owned();
    case Division::kNone:
    case Division::kVocabularyRows: break;
  }
  return {0, size};
}

Result<void> check_ranks(const ModelConfig& config, int32_t size) {
  const std::optional<std::string> found = obstacle(config, size);
  if (!found) return {};
  std::vector<int32_t> working;
  std::ranges::copy_if(kRankCounts, std::back_inserter(working),
                       [&config](int32_t ranks) { return !obstacle(config, ranks); });
  return make_error(ErrorCode::kInvalidArgument, "the model cannot be divided: {}; counts of ranks that work: {}",
                    *found, fmt::join(working, ", "));
}

Result<void> check_shared_experts(const ModelConfig& config, int32_t ring_count, int32_t rank_count) {
  const int32_t groups = ring_count * rank_count;
  if (std::ranges::find(kRankCounts, groups) == kRankCounts.end())
    return make_error(ErrorCode::kInvalidArgument,
                      "{} rings of {} ranks make {} groups of experts, wanted 1, 2, 4 or 8", ring_count, rank_count,
                      groups);
  bool has_experts = false;
  for (const LayerConfig& layer : config.layers) {
    if (!layer.feed_forward.moe) continue;
    has_experts = true;
    const int32_t count = layer.feed_forward.moe->expert_count;
    for (int32_t group = 0; group < groups; ++group) {
      if (tensor::expert_shards(count, {group, groups}).owned().size() > 0) continue;
      return make_error(ErrorCode::kInvalidArgument, "{} experts are too few for {} rings of {} ranks", count,
                        ring_count, rank_count);
    }
  }
  if (has_experts) return {};
  return make_error(ErrorCode::kInvalidArgument, "{} has no experts to share", config.architecture);
}

RankLayout rank_layout(const ModelConfig& config, RankPosition position, std::optional<RankPosition> experts) {
  CHECK(check_ranks(config, position.size), "a model that {} ranks cannot divide", position.size);
  RankLayout layout{.position = position,
                    .experts = experts.value_or(position),
                    .layers = {},
                    .vocabulary = {},
                    .logit_columns = (int64_t{config.vocab_size} + position.size - 1) / position.size};
  for (const LayerConfig& layer : config.layers) layout.layers.push_back(layer_layout(layer, position, layout.experts));
  layout.vocabulary.begin = std::min<int64_t>(position.rank * layout.logit_columns, config.vocab_size);
  layout.vocabulary.end = std::min<int64_t>(layout.vocabulary.begin + layout.logit_columns, config.vocab_size);
  return layout;
}

}  // namespace millrace::model
