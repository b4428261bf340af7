#include "grammar/grammar.h"

#include <algorithm>

#include "grammar/memo.h"

namespace millrace::grammar {
namespace {

/// Answers that begin when a memo has grown larger get a new one.
constexpr size_t kMostMemoBytes = size_t{32} << 20;
/// A state that reads so many bytes is followed by much of the vocabulary, and takes long to compute.
constexpr uint32_t kManyBytes = 64;
/// States that are computed when a grammar is compiled; those of long counts are left until they are met.
constexpr uint32_t kMostWarmed = 32;

uint32_t bytes_read(const Automaton& automaton, StateId state) {
  uint32_t count = 0;
  for (const Automaton::ByteEdge& edge : automaton.bytes_of(state)) count += edge.high - edge.low + 1u;
  return count;
}

}  // namespace

Grammar::Grammar(Automaton automaton, std::string given, std::shared_ptr<const Vocabulary> vocabulary,
                 std::vector<TokenId> ends)
    : automaton_(std::move(automaton)),
      given_(std::move(given)),
      vocabulary_(std::move(vocabulary)),
      ends_(std::move(ends)) {}

Grammar::~Grammar() = default;

Result<std::shared_ptr<const Grammar>> Grammar::compile(const Definition& definition,
                                                        std::shared_ptr<const Vocabulary> vocabulary,
                                                        std::vector<TokenId> ends) {
  auto automaton = Automaton::compile(definition);
  if (automaton.has_error()) return automaton.error();
  std::ranges::sort(ends);
  std::erase_if(ends, [&](TokenId token) { return token < 0 || token >= static_cast<TokenId>(vocabulary->size()); });
  auto grammar =
      std::make_shared<const Grammar>(std::move(*automaton), definition.given, std::move(vocabulary), std::move(ends));
  grammar->warm_up();
  if (Matcher(grammar, false).allowed() == nullptr) {
    return Error{ErrorCode::kInvalidArgument,
                 "no token of the model begins a text that matches it, or it can be matched in too many ways"};
  }
  return std::shared_ptr<const Grammar>(std::move(grammar));
}

std::shared_ptr<Memo> Grammar::memo() const {
  std::shared_ptr<Memo> current;
  {
    const std::lock_guard lock(mutex_);
    current = memo_;
  }
  if (current != nullptr && current->bytes() <= kMostMemoBytes) return current;
  auto fresh = std::make_shared<Memo>(*this);
  const std::lock_guard lock(mutex_);
  memo_ = std::move(fresh);
  return memo_;
}

void Grammar::warm_up() const {
  const auto first = memo();
  uint32_t warmed = 0;
  for (StateId state = 0; state < automaton_.state_count() && warmed < kMostWarmed; ++state) {
    if (bytes_read(automaton_, state) < kManyBytes) continue;
    if (!first->warm(state)) return;
    ++warmed;
  }
  for (const Automaton::Counted& counted : automaton_.counted()) {
    for (const StateId state : first->readers_at(counted.begin)) {
      if (bytes_read(automaton_, state) < kManyBytes || ++warmed > 2 * kMostWarmed) continue;
      if (!first->warm(state, counted.loop)) return;
    }
  }
}

Matcher::Matcher(std::shared_ptr<const Grammar> grammar, bool draws_ends)
    : grammar_(std::move(grammar)),
      memo_(grammar_->memo()),
      place_(memo_->after(memo_->begin(), grammar_->given_)),
      draws_ends_(draws_ends) {}

std::shared_ptr<const TokenMask> Matcher::allowed() const {
  return memo_->allowed(place_, draws_ends_);
}

bool Matcher::advance(TokenId token) {
  const Grammar& grammar = *grammar_;
  if (token < 0 || token >= static_cast<TokenId>(grammar.vocabulary().size())) return false;
  if (std::ranges::binary_search(grammar.ends(), token)) return draws_ends_ && may_end();
  const std::string_view text = grammar.vocabulary().text_of(token);
  const Memo::Place next = text.empty() ? Memo::kNowhere : memo_->after(place_, text);
  if (next == Memo::kNowhere) return false;
  place_ = next;
  return true;
}

std::optional<TokenId> Matcher::forced(const TokenMask& allowed) const {
  constexpr size_t kMost = 64;
  const std::vector<TokenId> tokens = allowed.members(kMost + 1);
  if (tokens.empty() || tokens.size() > kMost) return std::nullopt;
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
  return memo_->may_end(place_);
}

bool Matcher::must_end() const {
  return memo_->must_end(place_);
}

}  // namespace millrace::grammar
