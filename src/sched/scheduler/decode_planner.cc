#include "sched/scheduler/decode_planner.h"

#include <algorithm>
#include <span>
#include <utility>

namespace millrace::sched {

// Reading the weights costs every micro-batch the same, so more of them than the stages need make all wait longer.
// Until costs are known, the window is the guess. A plan of decode steps alone is made only while fewer are in flight:
// else groups that were small once would stay so.
size_t DecodePlanner::max_steps(const BatchShape& decodes, size_t ready_count) const {
  if (!state_.options.spread_decodes) return ready_count;
  const auto count = static_cast<size_t>(decodes.decode_count);
  const CostModel& costs = costs_.isolated_costs();
  size_t plans = state_.options.window;
  if (costs.usable()) {
    const uint32_t max_plans = std::min(state_.options.window, std::max(static_cast<uint32_t>(count), 1U));
    plans = costs.decode_groups(decodes, max_plans, transit_us_, costs_.machine());
  }
  if (state_.in_flight.size() >= plans && !prefill_pending()) return 0;
  return (count + plans - 1) / plans;
}

bool DecodePlanner::prefill_pending() const {
  return std::ranges::any_of(state_.running, &Sequence::prefilling) || admission_.has_room_for_next();
}

void DecodePlanner::plan() {
  std::vector<Sequence*> ready;
  BatchShape decodes;
  for (Sequence* sequence : state_.running) {
    if (!sequence->decoding() || sequence->awaits_mask()) continue;
    decodes.add_decode(static_cast<uint32_t>(sequence->tokens.size()));
    if (sequence->in_flight == 0) ready.push_back(sequence);
  }
  std::ranges::sort(ready, {}, [](const Sequence* one) { return std::pair(one->last_planned, one->id); });
  const size_t share = max_steps(decodes, ready.size());
  if (share == 0) return;
  const double share_of_all = static_cast<double>(share) / std::max(decodes.decode_count, 1.0);
  const double extra_row_cost = costs_.isolated_costs().extra_row_cost(
      {.decode_count = static_cast<double>(share), .decode_context = decodes.decode_context * share_of_all});
  size_t planned = 0;
  size_t replays = 0;  // of the sequences that are not planned yet
  for (const Sequence* sequence : std::span(ready).first(std::min(share, ready.size()))) replays += sequence->replayed;
  drafts_.begin();
  for (Sequence* sequence : ready) {
    if (planned == share) break;
    // Room for one of them may have sent a later one back to the queue.
    if (!sequence->running || !drafts_.has_room(*sequence, builder_.draft_rows()) ||
        !preemptor_.reserve_page(*sequence))
      continue;
    replays -= std::min<size_t>(replays, sequence->replayed);
    add_step(*sequence, replays, extra_row_cost);
    ++planned;
  }
}

// Drafts are cut to the pages that are free: no sequence is sent back for them. States need none. The accepted drafts
// of later sequences come before new drafts.
void DecodePlanner::add_step(Sequence& sequence, size_t later_replays, double extra_row_cost) {
  sequence.drafts = drafts_.propose(sequence, builder_.draft_rows() + later_replays, extra_row_cost);
  const auto& pages = sequence.page_table.pages;
  while (pages.size() < state_.pages_for(sequence.tokens.size() + sequence.drafts.size())) {
    if (state_.cache.extend(sequence.page_table)) continue;
    sequence.drafts.resize(pages.size() * state_.options.page_size - sequence.tokens.size());
  }
  const size_t wanted = state_.pages_for(sequence.tokens.size() + sequence.drafts.size());
  if (!state_.cache.extend_for_drafts(sequence.page_table, wanted, sequence.scheduled)) sequence.drafts.clear();
  builder_.add_slice(sequence, sequence.unscheduled());
}

}  // namespace millrace::sched
