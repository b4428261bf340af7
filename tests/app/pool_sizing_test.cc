#include "app/pool_sizing.h"

#include <catch2/catch.hpp>
#include <vector>

using namespace millrace;
using app::largest_node_ratio;
using cluster::NodePart;

TEST_CASE("the largest node is counted per layer of the first") {
  const std::vector<model::LayerRange> ranges = {{0, 10}, {10, 20}, {20, 40}};
  const std::vector<NodePart> stages = {
      {.first_stage = 0, .stage_count = 1}, {.first_stage = 1, .stage_count = 1}, {.first_stage = 2, .stage_count = 1}};
  CHECK(largest_node_ratio(stages, ranges) == 2);
  const std::vector<NodePart> two = {{.first_stage = 0, .stage_count = 1}, {.first_stage = 1, .stage_count = 2}};
  CHECK(largest_node_ratio(two, ranges) == 3);
  const std::vector<NodePart> first_is_largest = {{.first_stage = 0, .stage_count = 2},
                                                  {.first_stage = 2, .stage_count = 1}};
  CHECK(largest_node_ratio(first_is_largest, ranges) == 1);
}

TEST_CASE("a layer counts once for each of its ranks on a node") {
  const std::vector<model::LayerRange> ranges = {{0, 10}, {10, 20}};
  const std::vector<NodePart> parts = {{.first_stage = 0, .stage_count = 1, .first_rank = 0, .rank_count = 1},
                                       {.first_stage = 0, .stage_count = 1, .first_rank = 1, .rank_count = 1},
                                       {.first_stage = 1, .stage_count = 1, .first_rank = 0, .rank_count = 2}};
  CHECK(largest_node_ratio(parts, ranges) == 2);
}
