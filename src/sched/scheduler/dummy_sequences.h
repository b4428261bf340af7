#pragma once

#include <utility>
#include <vector>

#include "cache/window_pool.h"
#include "sched/plan/plan.h"

namespace millrace::sched {

/// Sequences without a request, on which the plans of the startup profile compute. They use slots and pages from 0 on.
/// Part of StartupProfiler, which runs while nothing else does.
class DummySequences {
 public:
  /// `vocab_size`: token ids that every stage knows. Without `sample` the slices return their last rows instead.
  DummySequences(uint32_t page_size, uint32_t vocab_size, bool sample = true,
                 std::vector<cache::WindowPool> windows = {})
      : page_size_(page_size),
        vocab_size_(vocab_size),
        sample_(sample),
        windows_(std::move(windows)),
        used_window_pages_(windows_.size()),
        written_states_(windows_.size()) {}

  /// Closes all sequences in the plan; their pages are used again by the next ones.
  void close_all(Plan& plan);
  /// Opens one more sequence in the plan, with a prompt of `prompt_length` tokens.
  void open(Plan& plan, uint32_t prompt_length);
  /// Opens a sequence with about `prefix` cached tokens before its prompt. The cached pages are pages that were full
  /// once, repeated as needed, since only the time to read them matters. Without such pages there is no prefix.
  void open_with_prefix(Plan& plan, uint32_t prefix, uint32_t tokens);
  /// Closes a sequence in the plan and opens another with its slot and pages. Plans in flight may use the same pages,
  /// since every stage runs plans in order.
  void reopen(Plan& plan, uint32_t slot, uint32_t prompt_length);
  /// Adds a slice with the next tokens of a sequence, which samples or returns its last row.
  void append(Plan& plan, uint32_t slot, uint32_t tokens);

 private:
  struct DummySequence {
    uint32_t length = 0;
    uint32_t sent_pages = 0;  // pages that earlier plans have sent to the stages
    std::vector<PageId> pages;
    uint64_t table_digest = 0;
    struct SentWindow {
      uint32_t end = 0;
      uint64_t digest = 0;
    };
    std::vector<SentWindow> windows;
  };
  void append_window_pages(Plan& plan, const PlanSlice& slice, DummySequence& sequence);
  [[nodiscard]] PageId window_page(size_t window, const PlanSlice& slice, uint32_t index, uint32_t end);
  [[nodiscard]] PageId state_page(size_t window, const PlanSlice& slice, uint32_t index, uint32_t end);

  const uint32_t page_size_;
  const uint32_t vocab_size_;
  const bool sample_;
  const std::vector<cache::WindowPool> windows_;
  std::vector<uint32_t> used_window_pages_;  // by window group; the pools are used over and over
  std::vector<PageId> written_states_;       // by window group: in a state group, a page that has been written
  std::vector<DummySequence> open_;          // by slot
  uint32_t used_pages_ = 0;                  // pages with smaller ids are in use
  uint32_t full_pages_ = 0;                  // pages with smaller ids were full once
};

}  // namespace millrace::sched
