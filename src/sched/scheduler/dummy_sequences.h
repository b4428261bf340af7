#pragma once

#include <vector>

#include "sched/plan/plan.h"

namespace millrace::sched {

/// Sequences of no request, on which the plans of the start's profile compute: slots from 0 on, pages from 0 on. Used
/// by the scheduler while nothing else runs.
class DummySequences {
 public:
  /// vocab_size: ids that every stage knows.
  DummySequences(uint32_t page_size, uint32_t vocab_size) : page_size_(page_size), vocab_size_(vocab_size) {}

  /// The plan closes them all; their pages are the next ones' to use.
  void close_all(Plan& plan);
  /// The plan opens one more, whose prompt has so many tokens.
  void open(Plan& plan, uint32_t prompt_length);
  /// As open(), behind a cached prefix of about so many tokens: pages that have been full, repeated as often as it
  /// takes, since only what it costs to read them counts. None have been: there is no prefix.
  void open_with_prefix(Plan& plan, uint32_t prefix, uint32_t tokens);
  /// The plan closes one and opens another in its slot, which has its pages. Those of plans in flight may be the same:
  /// every stage runs plans in order.
  void reopen(Plan& plan, uint32_t slot, uint32_t prompt_length);
  /// The plan computes the next tokens of one, and draws one more.
  void append(Plan& plan, uint32_t slot, uint32_t tokens);

 private:
  struct DummySequence {
    uint32_t length = 0;
    uint32_t sent_pages = 0;  // of its pages
    std::vector<PageId> pages;
    uint64_t table_digest = 0;
  };

  const uint32_t page_size_;
  const uint32_t vocab_size_;
  std::vector<DummySequence> open_;  // by slot
  uint32_t used_pages_ = 0;
  uint32_t full_pages_ = 0;  // the first so many have been full at some time
};

}  // namespace millrace::sched
