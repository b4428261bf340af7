#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "cluster/messages.h"
#include "comm/link.h"

namespace millrace::cluster {

/// What a node of the ring is.
struct NodeInfo {
  uint32_t rank = 0;
  uint32_t first_stage = 0;
  uint32_t stage_count = 0;
  std::string compute;  ///< as Loaded says; empty: not there, or not loaded yet
};

/// What the nodes of a ring have said about themselves. Written on the coordinator's Runtime, read from any thread.
class NodeReports {
 public:
  /// `assignments`: by rank; the first is of the node that the others are compared with.
  explicit NodeReports(const std::vector<Assignment>& assignments);

  /// What a node computes in; empty: it is gone. Differences to the first node are logged, once each.
  void set_compute(uint32_t rank, const std::string& compute);
  /// Its ends of the ring's links.
  void set_links(uint32_t rank, std::vector<comm::LinkStats> links);

  /// What the page stores of its stages count.
  void set_stores(uint32_t rank, std::vector<cache::StageStoreStats> stores);

  /// A connection to the control port was refused or turned away.
  void count_refusal() { ++refusals_; }
  [[nodiscard]] uint64_t refusals() const { return refusals_; }

  /// "node 1 of 2 (stages 1 to 1)"
  [[nodiscard]] std::string name(uint32_t rank) const;
  /// By rank.
  [[nodiscard]] std::vector<NodeInfo> nodes() const;
  [[nodiscard]] std::vector<comm::LinkStats> links() const;
  [[nodiscard]] std::vector<cache::StageStoreStats> stores() const;

 private:
  void warn_if_unequal(uint32_t rank);

  std::atomic<uint64_t> refusals_ = 0;
  mutable std::mutex mutex_;
  std::vector<NodeInfo> nodes_;                              // by rank
  std::vector<std::vector<comm::LinkStats>> links_;          // by rank
  std::vector<std::vector<cache::StageStoreStats>> stores_;  // by rank
  std::vector<std::string> warned_of_;                       // by rank: what a difference was logged for last
};

}  // namespace millrace::cluster
