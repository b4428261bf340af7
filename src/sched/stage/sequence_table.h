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
  uint64_t step = 0;                             ///< Plan::step
  tensor::BatchLayout layout;                    ///< with the pages of the first cache group
  std::vector<tensor::BatchLayout> windows;      ///< [window groups]: the same rows with that group's pages
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
  /// The pages of a sequence in one cache group, by their index. In a window group, those before the window are void,
  /// and in a state group those that hold no state.
  struct Table {
    std::vector<PageId> pages;
    uint64_t digest = 0;  // of the appended pages
  };
  struct Sequence {
    std::vector<Table> tables;  // [groups]
    uint32_t prompt_length = 0;
    uint32_t length = 0;       // tokens in the cache
    uint32_t draft_count = 0;  // drafts at the end of these, some of which the next slice may take back
    tensor::SamplingParams sampling;
    std::vector<TokenId> history;  // kept on the last stage when sampling.needs_history()
  };

  [[nodiscard]] Result<void> check_targets(const Plan& plan) const;
  [[nodiscard]] Result<void> check_masks(const Plan& plan) const;
  [[nodiscard]] Result<void> open_and_close(const Plan& plan);
  struct Group;
  [[nodiscard]] Result<void> append(const PlanSlice& slice, std::span<const TokenId> tokens);
  [[nodiscard]] Result<void> check_state_pages(const PlanSlice& slice, const Table& table) const;
  [[nodiscard]] Result<void> append_pages(Group& group, const PlanSlice& slice, std::span<const PageId> new_pages,
                                          Table& table);
  [[nodiscard]] Result<uint64_t> append_all_pages(const Plan& plan);
  [[nodiscard]] Result<void> check_copies(const Plan& plan) const;
  [[nodiscard]] tensor::SampleSpec sample_spec(const Sequence& sequence, uint32_t length) const;
  [[nodiscard]] Result<void> add_specs(const Plan& plan, const PlanSlice& slice, StageBatch& batch) const;

  const StageBounds bounds_;
  const bool samples_;
  std::vector<std::optional<Sequence>> slots_;
  std::vector<TokenMask> masks_;  // [mask_table_size], on the last stage
  /// One cache group: what holds for all sequences, and the pages of the plan's batch.
  struct Group {
    uint32_t window = 0;  // 0: the first group, which keeps all pages
    bool has_states = false;
    uint32_t page_count = 0;
    std::vector<bool> written;  // pages that a slice or a load has written: only they may hold a prefix
    std::vector<int32_t> page_begin;
    std::vector<PageId> pages;
    /// Returns the index of the first page that a slice sees.
    [[nodiscard]] uint32_t first_page(const PlanSlice& slice, uint32_t page_size) const;
    /// Adds the pages of a slice's sequence to the batch.
    void add_to_batch(const PlanSlice& slice, uint32_t page_size, const Table& table);
  };
  std::vector<Group> groups_;
  std::vector<int32_t> row_begin_;
  std::vector<int32_t> prefix_;
  std::vector<int32_t> drafts_;
};

}  // namespace millrace::sched
