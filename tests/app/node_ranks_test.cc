#include "app/node_ranks.h"

#include <catch2/catch.hpp>

using namespace millrace;
using app::NodeRanks;
using app::NodeStagesOptions;

namespace {

/// A node with the last two ranks of four of each of its two stages, the second and third of the ring.
NodeStagesOptions two_ranks_of_two_stages() {
  NodeStagesOptions options{.spans = {{.layers = {10, 20}}, {.layers = {20, 30}}},
                            .first = StageId(1),
                            .ranks = {.first = 2, .count = 2},
                            .stage = {},
                            .node = {}};
  options.stage.rank_count = 4;
  return options;
}

}  // namespace

TEST_CASE("the ranks of a node are numbered stage by stage") {
  const NodeStagesOptions options = two_ranks_of_two_stages();
  const NodeRanks ranks(options);
  REQUIRE(ranks.count() == 4);
  CHECK(ranks.stage(1) == StageId(1));
  CHECK(ranks.stage(2) == StageId(2));
  CHECK(ranks.position(1) == tensor::RankPosition{.rank = 3, .size = 4});
  CHECK(ranks.position(2) == tensor::RankPosition{.rank = 2, .size = 4});
  CHECK(ranks.span(1).layers == model::LayerRange{10, 20});
  CHECK(ranks.span(2).layers == model::LayerRange{20, 30});
  CHECK_FALSE(ranks.is_of_last_stage(1));
  CHECK(ranks.is_of_last_stage(2));
  CHECK(ranks.name(3) == "stage 2 rank 3");
  CHECK(ranks.stages_name() == "stages 1 to 2");
}

TEST_CASE("the ranks of shared experts are numbered ring by ring") {
  NodeStagesOptions options = two_ranks_of_two_stages();
  CHECK_FALSE(NodeRanks(options).expert_position(0));
  options.stage.expert_rings = 3;
  options.stage.expert_ring = 1;
  CHECK(NodeRanks(options).expert_position(0) == tensor::RankPosition{.rank = 6, .size = 12});
}
