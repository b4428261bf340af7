#include "cluster/node_reports.h"

#include "base/log.h"

namespace millrace::cluster {

NodeReports::NodeReports(const std::vector<Assignment>& assignments)
    : divides_stages_(assignments.front().rank_count < assignments.front().stage.rank_count),
      links_(assignments.size()),
      stores_(assignments.size()),
      warned_of_(assignments.size()) {
  for (const Assignment& assignment : assignments) {
    nodes_.push_back({.rank = static_cast<uint32_t>(nodes_.size()),
                      .first_stage = assignment.first_stage,
                      .stage_count = static_cast<uint32_t>(assignment.layers.size()),
                      .first_rank = assignment.first_rank,
                      .rank_count = assignment.rank_count,
                      .compute = {}});
  }
}

// Names never change, so no lock is needed.
std::string NodeReports::name(uint32_t rank) const {
  const NodeInfo& node = nodes_[rank];
  if (divides_stages_) {
    return fmt::format("node {} of {} (stage {}, ranks {} to {})", rank, nodes_.size(), node.first_stage,
                       node.first_rank, node.first_rank + node.rank_count - 1);
  }
  return fmt::format("node {} of {} (stages {} to {})", rank, nodes_.size(), node.first_stage,
                     node.first_stage + node.stage_count - 1);
}

void NodeReports::set_compute(uint32_t rank, const std::string& compute) {
  const std::lock_guard lock(mutex_);
  nodes_[rank].compute = compute;
  if (rank > 0) return warn_if_unequal(rank);
  for (uint32_t other = 1; other < nodes_.size(); ++other) warn_if_unequal(other);
}

void NodeReports::warn_if_unequal(uint32_t rank) {
  const std::string& own = nodes_.front().compute;
  const NodeInfo& other = nodes_[rank];
  if (own.empty() || other.compute.empty() || other.compute == own || warned_of_[rank] == other.compute) return;
  warned_of_[rank] = other.compute;
  log::warn(
      "{} computes in {}, the head's node in {}: the last bits of results, and with them tokens, depend on which "
      "node holds which layers; --cpu-isa on the head gives all nodes one instruction set",
      name(rank), other.compute, own);
}

void NodeReports::set_links(uint32_t rank, std::vector<comm::LinkStats> links) {
  const std::lock_guard lock(mutex_);
  links_[rank] = std::move(links);
}

void NodeReports::set_stores(uint32_t rank, std::vector<cache::StageStoreStats> stores) {
  const std::lock_guard lock(mutex_);
  stores_[rank] = std::move(stores);
}

std::vector<cache::StageStoreStats> NodeReports::stores() const {
  std::vector<cache::StageStoreStats> all;
  const std::lock_guard lock(mutex_);
  for (const auto& stores : stores_) all.insert(all.end(), stores.begin(), stores.end());
  return all;
}

std::vector<NodeInfo> NodeReports::nodes() const {
  const std::lock_guard lock(mutex_);
  return nodes_;
}

std::vector<comm::LinkStats> NodeReports::links() const {
  std::vector<comm::LinkStats> all;
  const std::lock_guard lock(mutex_);
  for (const auto& links : links_) all.insert(all.end(), links.begin(), links.end());
  return all;
}

}  // namespace millrace::cluster
