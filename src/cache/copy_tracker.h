#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "cache/page_copy.h"
#include "cache/token_trie.h"

namespace millrace::cache {

/// A copy that the stages are asked for, and what its end concerns.
struct PendingCopy {
  PageCopy copy;
  std::vector<NodeId> nodes;  ///< pinned on the device (load, store) or on the host (persist)
  bool frees_device = false;  ///< of a store: its device pages are wanted for something else
  SequenceId request;         ///< of a probe or fetch
  uint32_t done = 0;          ///< leading pages that are good on every stage, once all have answered
};

/// The copies between tiers that the head has asked for: it numbers them, hands them to plans in order, and pairs each
/// acknowledgement with its copy. What a copy means for the tiers is up to those who ask. Plain and deterministic.
/// Owned by a PrefixCache, on its thread.
class CopyTracker {
 public:
  /// Approximate pages of the copies that one plan carries, loads apart: a plan is one message of bounded size.
  static constexpr size_t kPagesPerPlan = 32768;

  explicit CopyTracker(uint64_t first_id) : next_id_(first_id) {}

  /// Numbers a copy; a plan carries it later.
  void request(PendingCopy copy);
  /// Takes back the probe of this request if no plan has carried it yet; false when there is none to take back.
  [[nodiscard]] bool withdraw_probe(SequenceId request);
  /// Returns the copies for the next plan, in order; what exceeds kPagesPerPlan waits for the one after.
  [[nodiscard]] std::vector<PageCopy> take();
  /// Ends a copy and returns it with `done`. An acknowledgement of a copy that is not under way is kData.
  [[nodiscard]] Result<PendingCopy> acknowledge(const CopyAck& ack);
  /// Forgets all copies; their ids are not used again.
  void clear();

  [[nodiscard]] bool has_unsent() const { return !unsent_.empty(); }
  /// Returns all copies that are asked for and not acknowledged, sent or not.
  [[nodiscard]] const std::unordered_map<CopyId, PendingCopy>& pending() const { return pending_; }
  /// Returns how many copies of one kind are pending. O(1).
  [[nodiscard]] size_t pending_count(CopyKind kind) const { return by_kind_[static_cast<size_t>(kind)]; }

 private:
  CopyId next_id_;
  CopyId last_verify_{0};  // that a plan has carried
  std::deque<PageCopy> unsent_;
  std::unordered_map<CopyId, PendingCopy> pending_;
  std::array<size_t, kCopyKindCount> by_kind_{};
};

}  // namespace millrace::cache
