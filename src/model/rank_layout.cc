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

bool has_dense_layer(const ModelConfig& config) {
  return config.sparse_layers.empty() || std::ranges::find(config.sparse_layers, false) != config.sparse_layers.end();
}

bool has_sparse_layer(const ModelConfig& config) {
  return std::ranges::find(config.sparse_layers, true) != config.sparse_layers.end();
}

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

/// Returns what prevents `ranks` ranks; nothing if they work.
std::optional<std::string> obstacle(const ModelConfig& config, int32_t ranks) {
  if (std::ranges::find(kRankCounts, ranks) == kRankCounts.end())
    return fmt::format("{} tensor-parallel ranks, wanted 1, 2, 4 or 8", ranks);
  const auto indivisible = [ranks](std::string_view name, int32_t size) {
    return fmt::format("{} {} is not a multiple of {} ranks", name, size, ranks);
  };
  if (config.head_count % ranks != 0) return indivisible("num_attention_heads", config.head_count);
  if (config.encoder && ranks > 1) return fmt::format("an encoder is not divided, wanted 1 rank instead of {}", ranks);
  if (config.kv_head_count % ranks != 0 && ranks % config.kv_head_count != 0)
    return fmt::format("num_key_value_heads {} is neither a multiple nor a divisor of {} ranks", config.kv_head_count,
                       ranks);
  if (config.hidden_size % ranks != 0) return indivisible("hidden_size", config.hidden_size);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const RankPosition position{rank, ranks};
    const auto of_heads = obstacle(config, tensor::head_shards(config.head_count, config.head_dim, position),
                                   fmt::format("o_proj's width {}", config.query_width()));
    if (of_heads) return of_heads;
    if (has_sparse_layer(config) && tensor::expert_shards(config.moe.expert_count, position).owned().size() == 0)
      return fmt::format("{} experts are too few for {} ranks", config.moe.expert_count, ranks);
    if (!has_dense_layer(config)) continue;
    const auto of_features = obstacle(config, tensor::feature_shards(config.intermediate_size, position),
                                      fmt::format("intermediate_size {}", config.intermediate_size));
    if (of_features) return of_features;
  }
  return {};
}

}  // namespace

TermRange RankLayout::part(Division division, int64_t head_dim, int64_t size) const {
  switch (division) {
    case Division::kNone: return {0, size};
    case Division::kHeadRows:
    case Division::kHeadColumns: return {heads.begin * head_dim, heads.end * head_dim};
    case Division::kKvHeadRows: return {kv_heads.begin * head_dim, kv_heads.end * head_dim};
    case Division::kFeatureRows:
    case Division::kFeatureColumns: return features.owned();
    case Division::kVocabularyRows: return vocabulary;
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
  if (!has_sparse_layer(config))
    return make_error(ErrorCode::kInvalidArgument, "{} has no experts to share", config.architecture);
  if (std::ranges::find(kRankCounts, groups) == kRankCounts.end())
    return make_error(ErrorCode::kInvalidArgument,
                      "{} rings of {} ranks make {} groups of experts, wanted 1, 2, 4 or 8", ring_count, rank_count,
                      groups);
  for (int32_t group = 0; group < groups; ++group) {
    if (tensor::expert_shards(config.moe.expert_count, {group, groups}).owned().size() > 0) continue;
    return make_error(ErrorCode::kInvalidArgument, "{} experts are too few for {} rings of {} ranks",
                      config.moe.expert_count, ring_count, rank_count);
  }
  return {};
}

RankLayout rank_layout(const ModelConfig& config, RankPosition position, std::optional<RankPosition> experts) {
  CHECK(check_ranks(config, position.size), "a model that {} ranks cannot divide", position.size);
  const auto share = [position](int64_t count) {
    return TermRange{position.rank * count / position.size, (position.rank + 1) * count / position.size};
  };
  RankLayout layout{.position = position,
                    .heads = share(config.head_count),
                    .kv_heads = share(config.kv_head_count),
                    .head_outputs = tensor::head_shards(config.head_count, config.head_dim, position),
                    .features = tensor::feature_shards(config.intermediate_size, position),
                    .experts = tensor::expert_shards(config.moe.expert_count, experts.value_or(position)),
                    .vocabulary = {},
                    .logit_columns = (int64_t{config.vocab_size} + position.size - 1) / position.size};
  if (config.kv_head_count < position.size) layout.kv_heads.end = layout.kv_heads.begin + 1;
  layout.vocabulary.begin = std::min<int64_t>(position.rank * layout.logit_columns, config.vocab_size);
  layout.vocabulary.end = std::min<int64_t>(layout.vocabulary.begin + layout.logit_columns, config.vocab_size);
  return layout;
}

}  // namespace millrace::model
