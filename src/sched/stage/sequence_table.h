#pragma once

#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "sched/plan/plan.h"
#include "sched/stage/stage_bounds.h"
#include "tensor/backend.h"

namespace millrace::sched {

/// A plan resolved against a stage's sequence table, as the runner needs it. Borrows from the Plan and the
/// SequenceTable; valid until the table applies the next plan.
struct StageBatch {
  PlanId plan;
  uint64_t step = 0;  ///< Plan::step
  tensor::BatchLayout layout;
  std::span<const TokenId> tokens;               // [rows]
  std::span<const PlanSlice> slices;             // [sequences]
  std::vector<tensor::SampleSpec> sample_specs;  ///< one per sample, in order; last stage only
};

/// Tracks the open sequences of a stage: their page tables, and where a rank samples the state of sampling. It follows
/// from the plans alone, so that it is the same on every rank. Owned by the stage loop for one epoch, on its thread.
class SequenceTable {
 public:
  /// `samples`: the rank samples, so that the table also keeps the state of sampling.
  SequenceTable(const StageBounds& bounds, bool samples);

  /// Applies closes, opens and slices. Returns kData for a plan that breaks a bound, or names an impossible slot or
  /// page. The table is unusable then, and the ring must break.
  [[nodiscard]] Result<StageBatch> apply(const Plan& plan);
  /// Checks whether a plan's numbers are within the bounds, before its turn.
  [[nodiscard]] Result<void> check(const Plan& plan) const;

 private:
  struct Sequence {
    std::vector<PageId> pages;
    uint32_t prompt_length = 0;
    uint32_t length = 0;       // tokens in the cache
    uint32_t draft_count = 0;  // drafts at the end of these, some of which the next slice may take back
    uint64_t digest = 0;       // of `pages`
    tensor::SamplingParams sampling;
    std::vector<TokenId> history;  // kept on the last stage when sampling.needs_history()
  };

  [[nodiscard]] Result<void> check_targets(const Plan& plan) const;
  [[nodiscard]] Result<void> check_masks(const Plan& plan) const;
  [[nodiscard]] Result<void> open_and_close(const Plan& plan);
  [[nodiscard]] Result<void> append(const PlanSlice& slice, std::span<const TokenId> tokens,
                                    std::span<const PageId> new_pages);
  [[nodiscard]] tensor::SampleSpec sample_spec(const Sequence& sequence, uint32_t length) const;
  [[nodiscard]] Result<void> add_specs(const Plan& plan, const PlanSlice& slice, StageBatch& batch) const;

  const StageBounds bounds_;
  const bool samples_;
  std::vector<std::optional<Sequence>> slots_;
  std::vector<TokenMask> masks_;  // [mask_table_size], on the last stage
  std::vector<bool> written_;     // pages that a slice or a load has written: only they may hold a prefix
  std::vector<int32_t> row_begin_;
  std::vector<int32_t> prefix_;
  std::vector<int32_t> page_begin_;
  std::vector<PageId> pages_;
};

}  // namespace millrace::sched
