#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "tensor/sum_shards.h"

namespace millrace::model {

/// How a tensor is divided over the ranks of a stage.
enum class Division : uint8_t {
  kNone,            ///< every rank has all of it
  kHeadRows,        ///< rows, or elements of a vector, by attention head
  kHeads,           ///< elements of a vector with one per attention head
  kKvHeadRows,      ///< rows, or elements of a vector, by KV head
  kHeadColumns,     ///< columns by attention head
  kMixerRows,       ///< rows, or elements of a vector, by part of a recurrent mixer
  kMixerColumns,    ///< columns by part of a recurrent mixer
  kFeatureRows,     ///< rows by feature of the feed-forward block
  kFeatureColumns,  ///< columns by feature of the feed-forward block
  kVocabularyRows,  ///< rows by token
};

/// Returns whether a division cuts columns, not rows or elements.
[[nodiscard]] constexpr bool divides_columns(Division division) {
  return division == Division::kHeadColumns || division == Division::kMixerColumns ||
         division == Division::kFeatureColumns;
}

/// The part of one layer that a rank computes.
struct LayerLayout {
  tensor::TermRange heads;
  tensor::TermRange kv_heads;  ///< the same on several ranks where there are fewer KV heads than ranks
  int32_t head_dim = 0;
  tensor::SumShards head_outputs;   ///< of o_proj's inputs
  tensor::TermRange mixer_parts;    ///< of a recurrent mixer: heads, or channels of a short convolution
  tensor::SumShards mixer_outputs;  ///< of the inputs of its last matrix
  tensor::SumShards features;       ///< of down_proj's inputs; of a sparse layer the shared expert's
  tensor::SumShards experts;        ///< of a sparse layer

  [[nodiscard]] int32_t head_count() const { return static_cast<int32_t>(heads.size()); }
  [[nodiscard]] int32_t kv_head_count() const { return static_cast<int32_t>(kv_heads.size()); }
  [[nodiscard]] int64_t query_width() const { return heads.size() * head_dim; }
  [[nodiscard]] int64_t kv_width() const { return kv_heads.size() * head_dim; }
};

/// The part of a model that one tensor-parallel rank of a stage computes. With one rank it is everything.
struct RankLayout {
  tensor::RankPosition position;
  tensor::RankPosition experts;     ///< among the ranks of all rings that share experts; else `position`
  std::vector<LayerLayout> layers;  // [layer_count], of the whole model
  tensor::TermRange vocabulary;     ///< tokens whose logits the rank computes; may be fewer than logit_columns
  int64_t logit_columns = 0;        ///< columns of a rank's slice of logits, equal for all ranks

  /// Returns whether ranks of other rings have some of the experts.
  [[nodiscard]] bool shares_experts() const { return experts != position; }
  [[nodiscard]] const LayerLayout& layer(int32_t index) const { return layers[static_cast<size_t>(index)]; }
  /// Returns whether the rank has an expert of a layer. A number below 0 stands for a weight of no expert.
  [[nodiscard]] bool owns_expert(int32_t index, int32_t expert) const {
    if (expert < 0) return true;
    const tensor::TermRange own = layer(index).experts.owned();
    return expert >= own.begin && expert < own.end;
  }
  /// Returns the rows or columns of a layer's tensor that the rank has; `size` is that of the whole side. `layer` does
  /// not count where the division is not by layer.
  [[nodiscard]] tensor::TermRange part(Division division, int32_t layer, int64_t size) const;
};

/// Checks that a model can be divided over `size` ranks. Errors: kInvalidArgument with the size that does not divide
/// and the counts of ranks that work.
[[nodiscard]] Result<void> check_ranks(const ModelConfig& config, int32_t size);

/// Checks that the experts of a model can be divided over the ranks of `ring_count` rings of `rank_count` ranks.
/// Errors: kInvalidArgument with what does not divide.
[[nodiscard]] Result<void> check_shared_experts(const ModelConfig& config, int32_t ring_count, int32_t rank_count);

/// Returns the layout of a rank of a model that check_ranks allows. `experts` is its position among all ranks of the
/// rings that share experts; without other rings it is `position`.
[[nodiscard]] RankLayout rank_layout(const ModelConfig& config, tensor::RankPosition position,
                                     std::optional<tensor::RankPosition> experts = {});

}  // namespace millrace::model
