#include "app/node_ranks.h"

#include <fmt/format.h>

#include "sched/stage/rank_name.h"

namespace millrace::app {

NodeRank NodeRanks::rank(size_t index) const {
  return {.stage = static_cast<int32_t>(index / per_stage()),
          .stage_count = static_cast<int32_t>(options_.spans.size()),
          .rank = static_cast<int32_t>(index % per_stage()),
          .rank_count = static_cast<int32_t>(per_stage()),
          .ring = options_.node.ring,
          .ring_count = options_.node.ring_count};
}

tensor::RankPosition NodeRanks::position(size_t index) const {
  return {.rank = static_cast<int32_t>(options_.ranks.first + index % per_stage()),
          .size = static_cast<int32_t>(options_.stage.rank_count)};
}

std::optional<tensor::RankPosition> NodeRanks::expert_position(size_t index) const {
  const sched::StageConfig& stage = options_.stage;
  if (!stage.shares_experts()) return std::nullopt;
  const tensor::RankPosition in_stage = position(index);
  return tensor::RankPosition{.rank = static_cast<int32_t>(stage.expert_ring) * in_stage.size + in_stage.rank,
                              .size = static_cast<int32_t>(stage.expert_rings) * in_stage.size};
}

StageId NodeRanks::stage(size_t index) const {
  return StageId(options_.first.value() + static_cast<uint32_t>(index / per_stage()));
}

std::string NodeRanks::name(size_t index) const {
  return sched::rank_name(stage(index), position(index));
}

std::string NodeRanks::stages_name() const {
  const size_t count = options_.spans.size();
  if (count == 1) return fmt::format("stage {}", options_.first.value());
  return fmt::format("stages {} to {}", options_.first.value(), options_.first.value() + count - 1);
}

}  // namespace millrace::app
