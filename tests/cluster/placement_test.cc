#include "cluster/placement.h"

#include <catch2/catch.hpp>
#include <set>

#include "cluster/link_ends.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::cluster;

namespace {

std::vector<NodePart> placed(uint32_t stages, uint32_t ranks, uint32_t nodes) {
  return place_ranks(stages, ranks, nodes).value();
}

}  // namespace

TEST_CASE("nodes get whole stages or equal parts of one") {
  using Parts = std::vector<NodePart>;
  REQUIRE(placed(2, 1, 2) == Parts{{0, 1, 0, 1}, {1, 1, 0, 1}});
  REQUIRE(placed(5, 2, 2) == Parts{{0, 2, 0, 2}, {2, 3, 0, 2}});
  REQUIRE(placed(2, 2, 4) == Parts{{0, 1, 0, 1}, {0, 1, 1, 1}, {1, 1, 0, 1}, {1, 1, 1, 1}});
  REQUIRE(placed(1, 8, 2) == Parts{{0, 1, 0, 4}, {0, 1, 4, 4}});
}

TEST_CASE("counts of nodes that do not fit name those that do") {
  for (const auto& [stages, ranks, nodes] : {std::tuple(2U, 1U, 3U), {2U, 2U, 3U}, {2U, 2U, 6U}, {2U, 4U, 6U}}) {
    const auto refused = place_ranks(stages, ranks, nodes);
    REQUIRE(refused.has_error());
    REQUIRE_THAT(refused.error().message, test::Mentions("--nnodes " + std::to_string(nodes), "--pp-size 2",
                                                         "--tp-size " + std::to_string(ranks)));
  }
}

TEST_CASE("each link between nodes has one sender and one receiver") {
  for (const auto& [stages, ranks, nodes] :
       {std::tuple(3U, 1U, 3U), {4U, 2U, 2U}, {2U, 2U, 4U}, {2U, 8U, 4U}, {1U, 4U, 4U}}) {
    INFO(stages << " stages of " << ranks << " ranks on " << nodes << " nodes");
    const std::vector<NodePart> parts = placed(stages, ranks, nodes);
    std::multiset<std::tuple<uint32_t, uint32_t, size_t, size_t>> senders;  // ids of the ends, and their nodes
    std::multiset<std::tuple<uint32_t, uint32_t, size_t, size_t>> receivers;
    size_t to_head = 0;
    for (size_t node = 0; node < parts.size(); ++node) {
      for (const LinkEnd& end : link_ends(parts, node, ranks)) {
        REQUIRE(end.peer != node);
        REQUIRE(end.owner < parts[node].size());
        if (end.to == comm::kHeadId) {
          REQUIRE(end.peer == 0);
          ++to_head;
        } else if (end.sends()) {
          senders.emplace(end.from.value(), end.to.value(), node, end.peer);
        } else {
          receivers.emplace(end.from.value(), end.to.value(), end.peer, node);
        }
      }
    }
    REQUIRE(senders == receivers);
    REQUIRE(std::set(senders.begin(), senders.end()).size() == senders.size());
    REQUIRE(to_head == (node_of(parts, StageId(stages - 1), 0) == 0 ? 0 : 1));
    // Chains of equal ranks between stages of different nodes, and a star with two links per rank in a divided stage.
    const size_t chains = nodes <= stages ? (nodes - 1) * ranks : (stages - 1) * ranks;
    const size_t stars = nodes <= stages ? 0 : 2 * stages * (ranks - ranks * stages / nodes);
    REQUIRE(senders.size() == chains + stars);
  }
}
