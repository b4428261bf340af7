#include "grammar/matcher.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "base/check.h"
#include "grammar/lazy_dfa.h"
#include "grammar/mask_walk.h"
#include "grammar/stack_import.h"

namespace millrace::grammar {

Matcher::Matcher(std::shared_ptr<const Grammar> grammar, bool samples_end_token)
    : grammar_(std::move(grammar)),
      samples_end_token_(samples_end_token),
      pending_text_(grammar_->prefix_),
      allowed_(grammar_->first_mask(samples_end_token)),
      is_settled_(allowed_ != nullptr) {}

bool Matcher::is_stop_token(TokenId token) const {
  return std::ranges::binary_search(grammar_->stop_token_ids(), token);
}

void Matcher::append(TokenId token) {
  if (is_stop_token(token)) return;
  pending_text_ += grammar_->vocabulary().read_text_of(token);
  walk_.reset();
  allowed_.reset();
  is_settled_ = false;
}

struct Matcher::Move {
  std::shared_ptr<LazyDfa> from;
  std::shared_ptr<LazyDfa> to;
  StackImport import;
  size_t added_bytes = 0;
  std::optional<LazyDfa::DfaState> state;  // in `to`, at the end
};

bool Matcher::begin(WorkBudget& budget) {
  if (has_begun_) return true;
  if (dfa_ == nullptr) dfa_ = grammar_->dfa(nullptr);
  const auto begin = dfa_->begin(budget);
  if (!begin) return false;
  dfa_state_ = *begin;
  may_end_ = dfa_->may_end(dfa_state_);
  has_begun_ = true;
  return true;
}

bool Matcher::make_room(WorkBudget& budget) {
  if (is_too_large_ || (move_ == nullptr && !dfa_->is_full())) return true;
  if (move_ == nullptr) {
    std::shared_ptr<LazyDfa> to = grammar_->dfa(dfa_.get());
    const std::span<const FrameId> frames = dfa_->frames_of(dfa_state_);
    StackImport import(dfa_->stacks(), to->stacks(), frames);
    move_ = std::make_shared<Move>(dfa_, std::move(to), std::move(import));
  }
  Move& move = *move_;
  if (!move.state) {
    const size_t before = move.to->bytes();
    const bool is_finished = move.import.run(budget);
    move.added_bytes += move.to->bytes() - before;
    is_too_large_ = move.added_bytes > grammar_->limits().position_bytes;
    if (is_too_large_) return true;
    if (!is_finished) return false;
    const std::vector<FrameId> frames = move.import.take();
    move.state = move.to->adopt(*move.from, dfa_state_, frames);
  }
  dfa_state_ = *move.state;
  dfa_ = move.to;
  move_.reset();
  return true;
}

// A full DFA is left after a byte or a node only: what was begun of these would begin again, perhaps without end.
bool Matcher::settle_text(WorkBudget& budget) {
  if (!begin(budget) || (move_ != nullptr && !make_room(budget))) return false;
  size_t read = 0;
  bool has_room = true;
  while (read < pending_text_.size() && has_room && !is_too_large_) {
    const auto next = dfa_->transition(dfa_state_, static_cast<uint8_t>(pending_text_[read]), budget);
    if (!next) break;
    ++read;
    CHECK(*next != LazyDfa::kDeadState, "a text that the grammar does not match was appended");
    dfa_state_ = *next;
    budget.spend(1);
    has_room = make_room(budget);
  }
  pending_text_.erase(0, read);
  may_end_ = dfa_->may_end(dfa_state_);
  must_end_ = dfa_->must_end(dfa_state_);
  return is_too_large_ || (has_room && pending_text_.empty());
}

bool Matcher::settle_mask(WorkBudget& budget) {
  const bool has_stop_tokens = samples_end_token_ && may_end_;
  if (must_end_ || is_too_large_) return true;
  allowed_ = dfa_->mask_of(dfa_state_, has_stop_tokens);
  if (allowed_ != nullptr) return true;
  if (walk_ == nullptr) walk_ = std::make_shared<MaskWalk>(grammar_->automaton(), grammar_->vocabulary());
  while (!walk_->run(dfa_, dfa_state_, grammar_->adaptive_, budget)) {
    if (budget.is_exhausted() || !make_room(budget)) return false;
    if (is_too_large_) return true;
  }
  TokenMask mask = walk_->mask();
  if (has_stop_tokens) {
    for (const TokenId token : grammar_->stop_token_ids()) mask.add(token);
  }
  if (mask.empty()) return true;
  allowed_ = walk_->took_long() ? dfa_->keep_mask(dfa_state_, has_stop_tokens, std::move(mask))
                                : std::make_shared<const TokenMask>(std::move(mask));
  walk_.reset();
  return true;
}

bool Matcher::settle(WorkBudget& budget) {
  if (is_settled_) return true;
  const std::lock_guard lock(grammar_->mutex_);
  is_settled_ = settle_text(budget) && settle_mask(budget);
  return is_settled_;
}

void Matcher::settle_text_at_once() {
  WorkBudget whole = WorkBudget::unlimited();
  const std::lock_guard lock(grammar_->mutex_);
  (void)settle_text(whole);
}

std::shared_ptr<const TokenMask> Matcher::allowed() const {
  if (is_settled_) return allowed_;
  Matcher copy = *this;
  WorkBudget whole = WorkBudget::unlimited();
  (void)copy.settle(whole);
  return copy.allowed_;
}

bool Matcher::advance(TokenId token) {
  const Vocabulary& vocabulary = grammar_->vocabulary();
  if (token < 0 || token >= static_cast<TokenId>(vocabulary.size())) return false;
  if (is_stop_token(token)) return samples_end_token_ && may_end();
  const std::string_view text = vocabulary.read_text_of(token);
  if (!vocabulary.is_used(token)) return false;
  settle_text_at_once();
  if (is_too_large_) return false;
  WorkBudget whole = WorkBudget::unlimited();
  const std::lock_guard lock(grammar_->mutex_);
  uint32_t next = dfa_state_;
  for (const char c : text) {
    if (next == LazyDfa::kDeadState) return false;
    next = *dfa_->transition(next, static_cast<uint8_t>(c), whole);
  }
  if (next == LazyDfa::kDeadState) return false;
  dfa_state_ = next;
  may_end_ = dfa_->may_end(next);
  must_end_ = dfa_->must_end(next);
  walk_.reset();
  allowed_.reset();
  is_settled_ = false;
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
  if (is_positioned()) return may_end_;
  Matcher copy = *this;
  copy.settle_text_at_once();
  return copy.may_end_;
}

bool Matcher::must_end() const {
  if (is_positioned()) return must_end_;
  Matcher copy = *this;
  copy.settle_text_at_once();
  return copy.must_end_;
}

}  // namespace millrace::grammar
