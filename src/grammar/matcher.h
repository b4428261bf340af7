#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/ids.h"
#include "base/token_mask.h"
#include "grammar/grammar.h"
#include "grammar/work_budget.h"

namespace millrace::grammar {

class LazyDfa;
class MaskWalk;

/// The position of one output in a grammar. Its work is the advance by what was appended, and the mask of what may come
/// next. settle() does it in parts; every other function does the rest of it at once. Owned by its sequence and used by
/// one thread at a time. Copies share what they have computed.
class Matcher {
 public:
  /// Starts at the beginning. With `samples_end_token`, masks include the stop tokens where the text may end.
  Matcher(std::shared_ptr<const Grammar> grammar, bool samples_end_token);

  /// Appends a token that the mask of this position contains. A stop token changes nothing.
  void append(TokenId token);
  /// Works until the budget ends. Returns whether the position and its mask are known.
  [[nodiscard]] bool settle(WorkBudget& budget);
  [[nodiscard]] bool is_settled() const { return is_settled_; }
  /// Returns whether the position is known, so that may_end() and must_end() take no time.
  [[nodiscard]] bool is_positioned() const { return has_begun_ && pending_text_.empty(); }
  /// Returns whether the position takes more memory than GrammarLimits::position_bytes. Nothing can follow it then.
  [[nodiscard]] bool is_too_large() const { return is_too_large_; }

  /// Returns the tokens that may come next; each of them advances. Null if no token can spell what must follow.
  [[nodiscard]] std::shared_ptr<const TokenMask> allowed() const;
  /// Appends any token. Returns false and changes nothing if the token may not come next.
  [[nodiscard]] bool advance(TokenId token);
  /// Returns the longest token of `allowed` if its text begins with the text of every other: then no other text can
  /// come. Returns nothing for more than 64 tokens. `allowed` is this matcher's mask.
  [[nodiscard]] std::optional<TokenId> forced(const TokenMask& allowed) const;
  /// Returns whether the output matches the grammar as it is.
  [[nodiscard]] bool may_end() const;
  /// Returns whether the output matches and nothing can follow.
  [[nodiscard]] bool must_end() const;

 private:
  /// The move of a position from a DFA that is full to another one. Copies of a matcher share it.
  struct Move;

  // These are called under the grammar's mutex. They return false if the budget ends first.
  /// Finds the position before any text.
  [[nodiscard]] bool begin(WorkBudget& budget);
  /// Moves the position to another DFA if this one is full.
  [[nodiscard]] bool make_room(WorkBudget& budget);
  [[nodiscard]] bool settle_text(WorkBudget& budget);
  [[nodiscard]] bool settle_mask(WorkBudget& budget);

  void settle_text_at_once();
  [[nodiscard]] bool is_stop_token(TokenId token) const;

  std::shared_ptr<const Grammar> grammar_;
  bool samples_end_token_;
  std::shared_ptr<LazyDfa> dfa_;    // null before the first work
  std::shared_ptr<Move> move_;      // null: none is under way
  bool has_begun_ = false;          // dfa_state_ is known
  uint32_t dfa_state_ = 0;          // after the text without pending_text_
  std::string pending_text_;        // appended, not advanced by yet
  bool may_end_ = false;            // without pending_text_
  bool must_end_ = false;           // without pending_text_
  std::shared_ptr<MaskWalk> walk_;  // of the mask, if it is under way
  std::shared_ptr<const TokenMask> allowed_;
  bool is_settled_ = false;
  bool is_too_large_ = false;
};

}  // namespace millrace::grammar
