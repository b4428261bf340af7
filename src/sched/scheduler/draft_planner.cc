#include "sched/scheduler/draft_planner.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace millrace::sched {
namespace {

/// Gain of a draft over its row's cost from which on it is worth it. The linear cost model says too little of row
/// counts at which computing begins to take longer than reading the weights.
constexpr double kMinGain = 1.5;

bool is_stop_token(const Sequence& sequence, TokenId token) {
  const auto& stop_tokens = sequence.request.sampling.stop_token_ids;
  return std::ranges::find(stop_tokens, token) != stop_tokens.end();
}

}  // namespace

DraftPlanner::DraftPlanner(const SchedulerState& state)
    : state_(state),
      max_rows_(max_draft_rows(state.options.draft_tokens, state.options.max_running)),
      mask_budget_(state.options.mask_steps) {}

// The mask table has a mask for each slot and kSpareMasks for drafts, all of which one plan may need at once.
size_t DraftPlanner::max_drafts(const Sequence& sequence, size_t used_rows) const {
  const size_t rows = sequence.matcher ? std::min(max_rows_, kSpareMasks) : max_rows_;
  used_rows += sequence.replayed;
  const size_t free = sequence.reasoning_budget ? sequence.reasoning_budget->free_tokens() : SIZE_MAX;
  // A step samples one token more than it has drafts, and the one that is forced is sampled alone.
  return std::min<size_t>({state_.options.draft_tokens, free - std::min<size_t>(free, 1),
                           rows - std::min(rows, used_rows), sequence.request.max_tokens - sequence.output_count() - 1,
                           state_.options.context_length - sequence.tokens.size() - 1});
}

Drafter* DraftPlanner::drafter_of(Sequence& sequence) const {
  const bool uses_history = state_.options.draft_history;
  const bool has_source = uses_history || !sequence.request.prediction.empty() || sequence.matcher;
  if (!sequence.drafter && has_source) {
    sequence.drafter =
        std::make_unique<Drafter>(sequence.prompt_length, std::move(sequence.request.prediction), uses_history);
  }
  return sequence.drafter.get();
}

std::vector<Draft> DraftPlanner::propose(Sequence& sequence, size_t used_rows, double extra_row_cost) {
  const size_t max_count = max_drafts(sequence, used_rows);
  Drafter* const drafter = max_count > 0 ? drafter_of(sequence) : nullptr;
  if (drafter == nullptr) return {};
  std::vector<Draft> drafts = drafter->propose(sequence.tokens, max_count);
  if (sequence.matcher) drafts = follow_grammar(sequence, drafts, max_count);
  double likelihood = 1;
  for (size_t i = 0; i < drafts.size(); ++i) {
    likelihood *= drafter->acceptance(drafts[i].source);
    // A draft that is accepted costs another row in the next step where states have to be kept.
    const double rows = state_.keeps_states() ? 1 + likelihood : 1;
    const bool is_worth_it = likelihood >= kMinGain * rows * extra_row_cost;
    if (is_worth_it && !is_stop_token(sequence, drafts[i].token)) continue;
    if (i == 0 && !is_worth_it) drafter->skip(drafts[i].source);
    drafts.resize(i);
  }
  return drafts;
}

std::vector<Draft> DraftPlanner::follow_grammar(const Sequence& sequence, std::span<const Draft> guesses,
                                                size_t max_count) {
  std::vector<Draft> drafts;
  grammar::Matcher matcher = *sequence.matcher;
  std::shared_ptr<const TokenMask> allowed = sequence.allowed;
  bool agrees_with_guesses = true;
  while (drafts.size() < max_count) {
    agrees_with_guesses = agrees_with_guesses && drafts.size() < guesses.size();
    Draft draft{0, DraftSource::kGrammar, nullptr};
    if (const auto forced = matcher.forced(*allowed)) {
      draft.token = *forced;
      agrees_with_guesses = agrees_with_guesses && guesses[drafts.size()].token == draft.token;
    } else if (agrees_with_guesses) {
      draft = guesses[drafts.size()];
    } else {
      break;
    }
    if (!allowed->contains(draft.token)) break;
    matcher.append(draft.token);
    if (!matcher.settle(mask_budget_) || matcher.must_end()) break;
    draft.allowed = allowed = matcher.allowed();
    if (allowed == nullptr) break;
    drafts.push_back(draft);
  }
  return drafts;
}

}  // namespace millrace::sched
