#include "grammar/grammar.h"

#include <algorithm>

#include "grammar/lazy_dfa.h"

namespace millrace::grammar {
namespace {

/// A new matcher gets a new lazy DFA once the current one is larger.
constexpr size_t kMaxDfaBytes = size_t{32} << 20;
/// A state that reads this many bytes has a large mask, which takes long to compute.
constexpr uint32_t kManyBytes = 64;
/// Limits the masks that are computed when a grammar is compiled. Later ones are computed when an output needs them.
constexpr uint32_t kMaxPrecomputedStates = 32;

uint32_t bytes_read(const Automaton& automaton, StateId state) {
  uint32_t count = 0;
  for (const Automaton::ByteEdge& edge : automaton.byte_edges_of(state)) count += edge.high - edge.low + 1u;
  return count;
}

}  // namespace

Grammar::Grammar(Automaton automaton, std::string prefix, std::shared_ptr<const Vocabulary> vocabulary,
                 std::vector<TokenId> stop_token_ids)
    : automaton_(std::move(automaton)),
      prefix_(std::move(prefix)),
      vocabulary_(std::move(vocabulary)),
      stop_token_ids_(std::move(stop_token_ids)) {}

Grammar::~Grammar() = default;

Result<std::shared_ptr<const Grammar>> Grammar::compile(const Definition& definition,
                                                        std::shared_ptr<const Vocabulary> vocabulary,
                                                        std::vector<TokenId> stop_token_ids) {
  auto automaton = Automaton::compile(definition);
  if (automaton.has_error()) return automaton.error();
  std::ranges::sort(stop_token_ids);
  std::erase_if(stop_token_ids,
                [&](TokenId token) { return token < 0 || token >= static_cast<TokenId>(vocabulary->size()); });
  auto grammar = std::make_shared<const Grammar>(std::move(*automaton), definition.prefix, std::move(vocabulary),
                                                 std::move(stop_token_ids));
  grammar->precompute_masks();
  if (Matcher(grammar, false).allowed() == nullptr) {
    return Error{ErrorCode::kInvalidArgument,
                 "no token of the model begins a text that matches it, or it can be matched in too many ways"};
  }
  return std::shared_ptr<const Grammar>(std::move(grammar));
}

std::shared_ptr<LazyDfa> Grammar::dfa() const {
  std::shared_ptr<LazyDfa> current;
  {
    const std::lock_guard lock(mutex_);
    current = dfa_;
  }
  if (current != nullptr && current->bytes() <= kMaxDfaBytes) return current;
  auto fresh = std::make_shared<LazyDfa>(*this);
  const std::lock_guard lock(mutex_);
  dfa_ = std::move(fresh);
  return dfa_;
}

void Grammar::precompute_masks() const {
  const auto first = dfa();
  uint32_t precomputed = 0;
  for (StateId state = 0; state < automaton_.state_count() && precomputed < kMaxPrecomputedStates; ++state) {
    if (bytes_read(automaton_, state) < kManyBytes) continue;
    if (!first->precompute(state)) return;
    ++precomputed;
  }
  for (const Automaton::RepeatedRule& counted : automaton_.repeated_rules()) {
    for (const StateId state : first->byte_states_from(counted.begin)) {
      if (bytes_read(automaton_, state) < kManyBytes || ++precomputed > 2 * kMaxPrecomputedStates) continue;
      if (!first->precompute(state, counted.loop)) return;
    }
  }
}

Matcher::Matcher(std::shared_ptr<const Grammar> grammar, bool samples_end_token)
    : grammar_(std::move(grammar)),
      dfa_(grammar_->dfa()),
      dfa_state_(dfa_->advance(dfa_->begin(), grammar_->prefix_)),
      samples_end_token_(samples_end_token) {}

std::shared_ptr<const TokenMask> Matcher::allowed() const {
  return dfa_->allowed(dfa_state_, samples_end_token_);
}

bool Matcher::advance(TokenId token) {
  const Grammar& grammar = *grammar_;
  if (token < 0 || token >= static_cast<TokenId>(grammar.vocabulary().size())) return false;
  if (std::ranges::binary_search(grammar.stop_token_ids(), token)) return samples_end_token_ && may_end();
  const std::string_view text = grammar.vocabulary().text_of(token);
  const LazyDfa::DfaState next = text.empty() ? LazyDfa::kDeadState : dfa_->advance(dfa_state_, text);
  if (next == LazyDfa::kDeadState) return false;
  dfa_state_ = next;
  return true;
}

std::optional<TokenId> Matcher::forced(const TokenMask& allowed) const {
  constexpr size_t kMaxCandidates = 64;
  const std::vector<TokenId> tokens = allowed.members(kMaxCandidates + 1);
  if (tokens.empty() || tokens.size() > kMaxCandidates) return std::nullopt;
  const Vocabulary& vocabulary = grammar_->vocabulary();
  const auto text_of = [&](TokenId token) { return vocabulary.text_of(token); };
  const TokenId longest = *std::ranges::max_element(tokens, {}, [&](TokenId token) { return text_of(token).size(); });
  const auto begins_it = [&](TokenId token) {
    return !text_of(token).empty() && text_of(longest).starts_with(text_of(token));
  };
  if (!std::ranges::all_of(tokens, begins_it)) return std::nullopt;
  return longest;
}

bool Matcher::may_end() const {
  return dfa_->may_end(dfa_state_);
}

bool Matcher::must_end() const {
  return dfa_->must_end(dfa_state_);
}

}  // namespace millrace::grammar
