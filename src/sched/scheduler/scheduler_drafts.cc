// Drafts: which tokens a decode step computes beside the one that is known, and what comes of them.
#include <algorithm>

#include "base/check.h"
#include "sched/scheduler/scheduler.h"

namespace millrace::sched {
namespace {

constexpr uint32_t kMaxDraftRows = 128;
/// What a draft must bring, by the row that it costs: the line through the timings says too little of rows where
/// computing begins to take longer than reading the weights.
constexpr double kMinGain = 1.5;

bool stops(const Sequence& sequence, TokenId token) {
  const auto& stops = sequence.request.sampling.stop_token_ids;
  return std::ranges::find(stops, token) != stops.end();
}

}  // namespace

uint32_t max_draft_rows(uint32_t draft_tokens, uint32_t max_running) {
  return static_cast<uint32_t>(std::min<uint64_t>(uint64_t{draft_tokens} * max_running, kMaxDraftRows));
}

// Masks of a plan's draws all have places at once: one for each sequence, and the spare ones for drafts.
size_t Scheduler::draft_room(const Sequence& sequence) const {
  const size_t rows = sequence.matcher ? std::min(max_draft_rows_, kSpareMasks) : max_draft_rows_;
  return std::min<size_t>({options_.draft_tokens, rows - std::min<size_t>(rows, draft_rows_),
                           sequence.request.max_tokens - sequence.output_count() - 1,
                           options_.context_length - sequence.tokens.size() - 1});
}

// With drafts if they are likely enough to be worth their rows, and as far as there are pages for them.
void Scheduler::plan_decode(Plan& plan, Sequence& sequence, double extra_row_cost) {
  sequence.drafts = likely_drafts(sequence, draft_room(sequence), extra_row_cost);
  auto& pages = sequence.page_table.pages;
  while (pages.size() < pages_for(sequence.scheduled + 1 + sequence.drafts.size())) {
    if (cache_.extend(sequence.page_table)) continue;
    sequence.drafts.resize(pages.size() * options_.page_size - sequence.scheduled - 1);
  }
  draft_rows_ += sequence.drafts.size();
  add_slice(plan, sequence, 1);
}

std::vector<Draft> Scheduler::likely_drafts(Sequence& sequence, size_t most, double extra_row_cost) const {
  if (most == 0) return {};
  if (!sequence.drafter) {
    if (!options_.draft_history && sequence.request.prediction.empty() && !sequence.matcher) return {};
    sequence.drafter = std::make_unique<Drafter>(sequence.prompt_length, std::move(sequence.request.prediction),
                                                 options_.draft_history);
  }
  Drafter& drafter = *sequence.drafter;
  std::vector<Draft> drafts = drafter.propose(sequence.tokens, most);
  if (sequence.matcher) drafts = grammar_drafts(sequence, drafts, most);
  double likely = 1;
  for (size_t i = 0; i < drafts.size(); ++i) {
    likely *= drafter.acceptance(drafts[i].source);
    const bool is_worth_it = likely >= kMinGain * extra_row_cost;
    if (is_worth_it && !stops(sequence, drafts[i].token)) continue;
    if (i == 0 && !is_worth_it) drafter.skip(drafts[i].source);
    drafts.resize(i);
  }
  return drafts;
}

// What the form leaves no choice of, and what is guessed where it does.
std::vector<Draft> Scheduler::grammar_drafts(const Sequence& sequence, std::span<const Draft> guessed, size_t most) {
  std::vector<Draft> drafts;
  grammar::Matcher ahead = *sequence.matcher;
  bool as_guessed = true;
  std::shared_ptr<const TokenMask> allowed = sequence.allowed;
  while (drafts.size() < most) {
    as_guessed = as_guessed && drafts.size() < guessed.size();
    Draft draft{0, DraftSource::kGrammar, nullptr};
    if (const auto forced = ahead.forced(*allowed)) {
      draft.token = *forced;
      as_guessed = as_guessed && guessed[drafts.size()].token == draft.token;
    } else if (as_guessed) {
      draft = guessed[drafts.size()];
    } else {
      break;
    }
    if (!allowed->contains(draft.token) || !ahead.advance(draft.token) || ahead.must_end()) break;
    draft.allowed = allowed = ahead.allowed();
    if (allowed == nullptr) break;
    drafts.push_back(draft);
  }
  return drafts;
}

void Scheduler::add_draws(Plan& plan, Sequence& sequence) {
  if (!sequence.matcher) {
    plan.sample_masks.insert(plan.sample_masks.end(), 1 + sequence.drafts.size(), -1);
    return;
  }
  if (sequence.allowed == nullptr) sequence.allowed = sequence.matcher->allowed();
  CHECK(sequence.allowed != nullptr, "sequence {}: no token can come next", sequence.id.value());
  plan.sample_masks.push_back(static_cast<int32_t>(masks_.index_of(sequence.allowed, plan)));
  for (const Draft& draft : sequence.drafts) {
    plan.sample_masks.push_back(static_cast<int32_t>(masks_.index_of(draft.allowed, plan)));
  }
}

void Scheduler::book_drafts(Sequence& sequence, std::span<const Draft> drafts, size_t accepted, GenerateEvent& event) {
  if (sequence.running) sequence.scheduled += static_cast<uint32_t>(accepted);
  if (drafts.empty()) return;
  sequence.drafter->record_outcome(drafts, accepted);
  for (size_t i = 0; i < drafts.size(); ++i) {
    const bool drawn = i < accepted;
    const auto source = static_cast<size_t>(drafts[i].source);
    ++draft_counts_.drafted[source];
    draft_counts_.accepted[source] += drawn ? 1 : 0;
    if (drafts[i].source != DraftSource::kPrediction) continue;
    ++(drawn ? event.accepted_predictions : event.rejected_predictions);
  }
}

}  // namespace millrace::sched
