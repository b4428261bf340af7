#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "app/node_stages_options.h"
#include "app/rank_processors.h"
#include "base/ids.h"
#include "model/stage_model.h"
#include "tensor/collective.h"

namespace millrace::app {

/// The ranks that a node hosts, by their index on it: stage by stage, and in the order of their numbers. Plain data of
/// NodeStages, which owns the options.
class NodeRanks {
 public:
  explicit NodeRanks(const NodeStagesOptions& options) : options_(options) {}

  [[nodiscard]] size_t count() const { return options_.spans.size() * per_stage(); }
  /// Returns the ranks of each stage that are on this node.
  [[nodiscard]] size_t per_stage() const { return options_.ranks.count; }
  /// Returns the rank among those that share this node's processors or GPUs.
  [[nodiscard]] NodeRank rank(size_t index) const;
  /// Returns the rank among those of its stage.
  [[nodiscard]] tensor::RankPosition position(size_t index) const;
  /// Returns the rank among those of all rings that share experts; nothing if none do.
  [[nodiscard]] std::optional<tensor::RankPosition> expert_position(size_t index) const;
  [[nodiscard]] StageId stage(size_t index) const;
  [[nodiscard]] const model::StageSpan& span(size_t index) const { return options_.spans[index / per_stage()]; }
  /// Returns whether the rank is of the last stage on this node.
  [[nodiscard]] bool is_of_last_stage(size_t index) const { return index + per_stage() >= count(); }
  /// Returns the rank's name in logs and errors: "stage 2", "stage 2 rank 1".
  [[nodiscard]] std::string name(size_t index) const;
  /// Returns all stages as one name: "stages 0 to 3".
  [[nodiscard]] std::string stages_name() const;

 private:
  const NodeStagesOptions& options_;
};

}  // namespace millrace::app
