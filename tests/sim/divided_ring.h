#pragma once

#include <map>

#include "cluster/link_ends.h"
#include "sim/simulated_collective.h"
#include "sim/simulated_ring.h"

namespace millrace::test {

/// Builds a simulated ring whose ranks are divided over several processes, with the placement and the links of a real
/// one. Each process has LocalStages of its own. Links between them are those of the simulation.
class DividedRingBuilder final : public sched::RingBuilder {
 public:
  DividedRingBuilder(sim::RingParts parts, uint32_t node_count, sim::VirtualCollectiveOptions collectives)
      : parts_(std::move(parts)),
        nodes_(cluster::place_ranks(parts_.config.stage_count, parts_.config.rank_count, node_count).value()),
        collectives_(collectives) {
    size_t first = 0;
    for (const cluster::NodePart& node : nodes_) {
      const auto begin = static_cast<std::ptrdiff_t>(first);
      const auto end = begin + static_cast<std::ptrdiff_t>(node.size());
      stages_.push_back(std::make_unique<sched::LocalStages>(
          parts_.head, std::vector(parts_.runtimes.begin() + begin, parts_.runtimes.begin() + end),
          std::vector(parts_.runners.begin() + begin, parts_.runners.begin() + end), StageId(node.first_stage),
          sched::LocalStages::Ranks{.first = node.first_rank, .count = node.rank_count}, parts_.config));
      first += node.size();
    }
  }

  asio::awaitable<sched::RingEnds> build(RingEpoch) override {
    std::map<std::pair<StageId, StageId>, comm::Link> links;
    std::vector<sched::OuterLinks> outer(nodes_.size());
    for (size_t node = 0; node < nodes_.size(); ++node) {
      outer[node].ranks.resize(nodes_[node].size());
      for (const cluster::LinkEnd& end : cluster::link_ends(nodes_, node, parts_.config.rank_count)) {
        comm::Link& link = links[{end.from, end.to}];
        if (!link.sender && !link.receiver) link = make_link(runtime_of(end.from), runtime_of(end.to));
        set(outer[node].ranks[end.owner], end, link);
      }
    }
    for (uint32_t stage = 0; stage < parts_.config.stage_count; ++stage) divide_collective(StageId(stage), outer);
    comm::Link in = make_link(parts_.head, *parts_.runtimes.front());
    outer.front().ranks.front().upstream = std::move(in.receiver);
    const StageId last = comm::rank_id(StageId(parts_.config.stage_count - 1), 0);
    if (nodes_.front().hosts(StageId(parts_.config.stage_count - 1), 0)) {
      comm::Link& out = links[{last, comm::kHeadId}] = make_link(runtime_of(last), parts_.head);
      outer.front().ranks[nodes_.front().index_of(StageId(parts_.config.stage_count - 1), 0)].downstream =
          std::move(out.sender);
    }
    for (size_t node = 0; node < nodes_.size(); ++node) stages_[node]->start(std::move(outer[node]));
    const sched::StageBounds& bounds = parts_.config.bounds;
    co_return sched::RingEnds{.to_first_stage = std::move(in.sender),
                              .from_last_stage = std::move(links[{last, comm::kHeadId}].receiver),
                              .pages = cache::PoolSizes{.device = bounds.page_count, .host = bounds.host_page_count},
                              .steps = nullptr};
  }
  asio::awaitable<void> tear_down(RingEpoch, std::string reason) override {
    for (const auto& node : stages_) node->stop(reason);
    for (const auto& node : stages_) co_await node->join();
  }
  void interrupt() override {}  // build() never waits

  [[nodiscard]] size_t node_count() const { return nodes_.size(); }
  /// Ends what a node runs in this epoch, as the death of its process does. Its neighbours find their links closed.
  void kill(size_t node) { stages_[node]->stop("node " + std::to_string(node) + " has died"); }

 private:
  [[nodiscard]] comm::Link make_link(async::Runtime& from, async::Runtime& to) const {
    return parts_.config.make_link(from, to, parts_.config.window + 1);
  }
  [[nodiscard]] async::Runtime& runtime_of(StageId end) const {
    if (end == comm::kHeadId) return parts_.head;
    for (uint32_t stage = 0; stage < parts_.config.stage_count; ++stage) {
      for (uint32_t rank = 0; rank < parts_.config.rank_count; ++rank) {
        if (comm::rank_id(StageId(stage), rank) == end) return runtime_of(stage, rank);
      }
    }
    throw std::out_of_range("a link with a rank that does not exist");
  }
  [[nodiscard]] async::Runtime& runtime_of(uint32_t stage, uint32_t rank) const {
    return *parts_.runtimes[size_t{stage} * parts_.config.rank_count + rank];
  }
  void set(sched::StageLinks& owner, const cluster::LinkEnd& end, comm::Link& link) const {
    using Use = cluster::LinkEnd::Use;
    if (end.use == Use::kPlansToRank || end.use == Use::kResultsOfRank) {
      owner.ranks.resize(parts_.config.rank_count - 1);
      comm::Link& other = owner.ranks[end.other - 1];
      (end.sends() ? void(other.sender = std::move(link.sender)) : void(other.receiver = std::move(link.receiver)));
    } else if (end.sends()) {
      (end.use == Use::kDownstream ? owner.downstream : owner.to_leader) = std::move(link.sender);
    } else {
      (end.use == Use::kUpstream ? owner.upstream : owner.from_leader) = std::move(link.receiver);
    }
  }
  /// Gives the ranks of a stage that is divided their ends of one group.
  void divide_collective(StageId stage, std::vector<sched::OuterLinks>& outer) const {
    std::vector<std::reference_wrapper<async::Runtime>> ranks;
    for (uint32_t rank = 0; rank < parts_.config.rank_count; ++rank)
      ranks.emplace_back(runtime_of(stage.value(), rank));
    auto ends = sim::SimulatedCollective::make_group(ranks, collectives_);
    for (uint32_t rank = 0; rank < parts_.config.rank_count; ++rank) {
      const size_t node = cluster::node_of(nodes_, stage, rank);
      if (nodes_[node].rank_count < parts_.config.rank_count) outer[node].collectives.push_back(std::move(ends[rank]));
    }
  }

  const sim::RingParts parts_;
  const std::vector<cluster::NodePart> nodes_;
  const sim::VirtualCollectiveOptions collectives_;
  std::vector<std::unique_ptr<sched::LocalStages>> stages_;  // by node
};

}  // namespace millrace::test
