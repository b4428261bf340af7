#include "grammar/grammar.h"

#include <algorithm>

#include "grammar/lazy_dfa.h"
#include "grammar/matcher.h"

namespace millrace::grammar {
namespace {

/// A state that reads this many bytes has a large mask, which takes long to compute.
constexpr uint32_t kManyBytes = 64;
/// Bounds the masks of states, and those of states of counted rules, that are computed when a grammar is compiled.
constexpr size_t kMaxPrecomputed = 32;

uint32_t bytes_read(const Automaton& automaton, StateId state) {
  uint32_t count = 0;
  for (const Automaton::ByteEdge& edge : automaton.byte_edges_of(state)) count += edge.high - edge.low + 1u;
  return count;
}

/// Returns the states whose masks take long and will probably be needed.
std::vector<AdaptiveMaskKey> states_with_large_masks(const Automaton& automaton, LazyDfa& dfa, WorkBudget& budget) {
  std::vector<AdaptiveMaskKey> keys;
  for (StateId state = 0; state < automaton.state_count() && keys.size() < kMaxPrecomputed; ++state) {
    if (bytes_read(automaton, state) >= kManyBytes) keys.push_back({state, 0});
  }
  const size_t max_count = keys.size() + kMaxPrecomputed;
  for (const Automaton::RepeatedRule& counted : automaton.repeated_rules()) {
    if (keys.size() >= max_count) break;
    const auto begin = dfa.closure_of({counted.begin, CallStacks::kBottom}, budget);
    if (!begin) break;
    for (const FrameId frame : dfa.frames_of(*begin)) {
      const StateId state = dfa.stacks().frame(frame).state;
      if (bytes_read(automaton, state) >= kManyBytes) keys.push_back({state, counted.loop});
    }
  }
  return keys;
}

}  // namespace

Grammar::Grammar(Automaton automaton, std::string prefix, std::shared_ptr<const Vocabulary> vocabulary,
                 std::vector<TokenId> stop_token_ids, const GrammarLimits& limits)
    : automaton_(std::move(automaton)),
      prefix_(std::move(prefix)),
      vocabulary_(std::move(vocabulary)),
      stop_token_ids_(std::move(stop_token_ids)),
      limits_(limits),
      adaptive_(limits.adaptive_bytes) {}

Grammar::~Grammar() = default;

Result<std::shared_ptr<const Grammar>> Grammar::compile(const Definition& definition,
                                                        std::shared_ptr<const Vocabulary> vocabulary,
                                                        std::vector<TokenId> stop_token_ids,
                                                        const GrammarLimits& limits) {
  auto automaton = Automaton::compile(definition, *vocabulary);
  if (automaton.has_error()) return automaton.error();
  std::ranges::sort(stop_token_ids);
  std::erase_if(stop_token_ids,
                [&](TokenId token) { return token < 0 || token >= static_cast<TokenId>(vocabulary->size()); });
  auto grammar = std::make_shared<Grammar>(std::move(*automaton), definition.prefix, std::move(vocabulary),
                                           std::move(stop_token_ids), limits);
  Matcher first(grammar, false);
  WorkBudget budget(limits.first_mask_steps);
  if (!first.settle(budget)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the tokens that may begin its text take more than {} steps to find (it can be matched in too "
                      "many ways)",
                      limits.first_mask_steps);
  }
  if (first.is_too_large()) {
    return make_error(ErrorCode::kInvalidArgument, "the ways to begin its text take more than {} bytes",
                      limits.position_bytes);
  }
  if (first.allowed() == nullptr) {
    return Error{ErrorCode::kInvalidArgument, "no token of the model begins a text that matches it"};
  }
  const std::shared_ptr<const TokenMask> with_stop_tokens = Matcher(grammar, true).allowed();
  grammar->first_masks_[0] = first.allowed();
  grammar->first_masks_[1] = with_stop_tokens;
  grammar->precompute_masks();
  return std::shared_ptr<const Grammar>(std::move(grammar));
}

std::shared_ptr<LazyDfa> Grammar::dfa(const LazyDfa* full) const {
  if (dfa_ == nullptr || dfa_.get() == full || dfa_->is_full())
    dfa_ = std::make_shared<LazyDfa>(automaton_, limits_.dfa_bytes);
  return dfa_;
}

void Grammar::precompute_masks() const {
  const std::lock_guard lock(mutex_);
  WorkBudget budget(limits_.precompute_steps);
  std::shared_ptr<LazyDfa> current = dfa(nullptr);
  for (const AdaptiveMaskKey key : states_with_large_masks(automaton_, *current, budget)) {
    if (adaptive_.find(key) != nullptr) continue;
    const std::shared_ptr<AdaptiveMaskWalk> walk = adaptive_.walk_of(*vocabulary_, key);
    while (!walk->run(current, budget)) {
      if (budget.is_exhausted()) return;
      current = dfa(current.get());
    }
    adaptive_.add(key, walk->take());
  }
}

size_t Grammar::bytes() const {
  const std::lock_guard lock(mutex_);
  return automaton_.bytes() + adaptive_.bytes() + (dfa_ == nullptr ? 0 : dfa_->bytes());
}

}  // namespace millrace::grammar
