#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "cluster/messages.h"
#include "comm/link.h"

namespace millrace::cluster {

/// The public description of a node of the ring.
struct NodeInfo {
  uint32_t rank = 0;
  uint32_t first_stage = 0;
  uint32_t stage_count = 0;
  uint32_t first_rank = 0;  ///< of each of its stages
  uint32_t rank_count = 1;
  std::string compute;  ///< as in Loaded; empty: not connected, or not loaded yet
};

/// Keeps what the nodes of a ring have reported about themselves. Owned by the roster; written on the coordinator's
/// Runtime, read from any thread.
class NodeReports {
 public:
  /// `assignments` are by rank; the other nodes are compared with the first.
  explicit NodeReports(const std::vector<Assignment>& assignments);

  /// Sets what a node computes in; empty means that it is gone. Logs each difference to the first node once.
  void set_compute(uint32_t rank, const std::string& compute);
  /// Sets the counters of a node's link ends.
  void set_links(uint32_t rank, std::vector<comm::LinkStats> links);

  /// Sets the counters of the page stores of a node's stages.
  void set_stores(uint32_t rank, std::vector<cache::StageStoreStats> stores);

  /// Counts a connection to the control port that was refused or turned away.
  void count_refusal() { ++refusals_; }
  [[nodiscard]] uint64_t refusals() const { return refusals_; }

  /// Returns a name such as "node 1 of 2 (stages 1 to 1)", or "node 1 of 2 (stage 0, ranks 1 to 1)".
  [[nodiscard]] std::string name(uint32_t rank) const;
  /// Returns the nodes by rank.
  [[nodiscard]] std::vector<NodeInfo> nodes() const;
  [[nodiscard]] std::vector<comm::LinkStats> links() const;
  [[nodiscard]] std::vector<cache::StageStoreStats> stores() const;

 private:
  void warn_if_unequal(uint32_t rank);

  std::atomic<uint64_t> refusals_ = 0;
  mutable std::mutex mutex_;
  const bool divides_stages_;                                // ranks of a stage are on several nodes
  std::vector<NodeInfo> nodes_;                              // by rank
  std::vector<std::vector<comm::LinkStats>> links_;          // by rank
  std::vector<std::vector<cache::StageStoreStats>> stores_;  // by rank
  std::vector<std::string> warned_of_;                       // by rank: the last compute string that was logged
};

}  // namespace millrace::cluster
