#include "app/rank_processors.h"

#include <catch2/catch.hpp>

#include "model/families/read_config.h"
#include "support/mentions.h"
#include "support/paths.h"

using namespace millrace;

namespace {

const std::vector<std::vector<int>> kTwoNodes = {{0, 1, 2, 3}, {4, 5, 6, 7}};

app::NodeRank rank_of(int32_t rank, int32_t size, int32_t stage = 0, int32_t stage_count = 1) {
  return {.stage = stage, .stage_count = stage_count, .rank = rank, .rank_count = size};
}

std::vector<int> near(const app::NodeRank& rank, const std::vector<std::vector<int>>& nodes) {
  return app::rank_processors({}, rank, nodes).value().near;
}

}  // namespace

TEST_CASE("a rank owns NUMA nodes or shares one") {
  using List = std::vector<int>;
  REQUIRE(near(rank_of(0, 1), kTwoNodes).empty());
  REQUIRE(near(rank_of(0, 2), {{0, 1}}).empty());
  REQUIRE(near(rank_of(0, 2), kTwoNodes) == kTwoNodes[0]);
  REQUIRE(near(rank_of(1, 2), kTwoNodes) == kTwoNodes[1]);
  for (const int32_t rank : {0, 1}) REQUIRE(near(rank_of(rank, 4), kTwoNodes) == kTwoNodes[0]);
  for (const int32_t rank : {2, 3}) REQUIRE(near(rank_of(rank, 4), kTwoNodes) == kTwoNodes[1]);
  REQUIRE(near(rank_of(0, 2), {{0}, {1}, {2}, {3}}) == List{0, 1});
  REQUIRE(near(rank_of(1, 2), {{0}, {1}, {2}, {3}}) == List{2, 3});
  REQUIRE(near(rank_of(1, 2), {{0}, {1}, {2}}) == List{1, 2});
}

TEST_CASE("pinned ranks have processors of their own in their node") {
  app::NodeOptions node;
  node.pin_threads = true;
  node.threads = 8;
  std::vector<int> all;
  for (int32_t stage = 0; stage < 2; ++stage) {
    for (int32_t rank = 0; rank < 4; ++rank) {
      const auto found = app::rank_processors(node, rank_of(rank, 4, stage, 2), kTwoNodes).value();
      REQUIRE(found.pin.size() == 1);
      REQUIRE(std::ranges::count(found.near, found.pin[0]) == 1);
      all.push_back(found.pin[0]);
    }
  }
  std::ranges::sort(all);
  REQUIRE(all == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
  node.threads = 16;
  const auto refused = app::rank_processors(node, rank_of(3, 4, 1, 2), kTwoNodes);
  REQUIRE(refused.has_error());
  REQUIRE_THAT(refused.error().message, test::Mentions("--pin-threads", "8 threads", "may use 4"));
}

TEST_CASE("ranks share weights where their NUMA nodes agree") {
  using Nodes = std::vector<size_t>;
  REQUIRE(app::nodes_of({}, kTwoNodes).empty());
  REQUIRE(app::nodes_of({.near = {4, 5}, .pin = {}}, kTwoNodes) == Nodes{1});
  REQUIRE(app::nodes_of({.near = {0, 1, 4, 5}, .pin = {0}}, kTwoNodes) == Nodes{0});
  // Two pinned rings of one rank each: one per NUMA node, and both over both nodes once there are more threads.
  app::NodeOptions node;
  node.pin_threads = true;
  for (const int32_t threads : {4, 8}) {
    node.threads = threads;
    for (const int32_t ring : {0, 1}) {
      const app::NodeRank rank{.ring = ring, .ring_count = 2};
      const auto found = app::nodes_of(app::rank_processors(node, rank, {{0, 1, 4, 5}, {2, 3, 6, 7}}).value(),
                                       {{0, 1, 4, 5}, {2, 3, 6, 7}});
      REQUIRE(found == (threads == 4 ? Nodes{static_cast<size_t>(ring)} : Nodes{0, 1}));
    }
  }
}

TEST_CASE("auto means as many ranks as NUMA nodes where they divide") {
  const auto config = model::read_config(test::source_dir() / "tests/golden/qwen2").value();
  REQUIRE(app::ranks_for(config, 1) == 1);
  REQUIRE(app::ranks_for(config, 2) == 2);
  REQUIRE(app::ranks_for(config, 3) == 2);
  REQUIRE(app::ranks_for(config, 64) <= 8);
}
