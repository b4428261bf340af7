#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/token_mask.h"
#include "grammar/automaton.h"
#include "grammar/vocabulary.h"

/// Compiled output constraints and their token masks. Each notation is read into a Definition, which compiles to an
/// Automaton. A Grammar is an automaton over a vocabulary, and a Matcher follows one output through it. The folder
/// knows neither models nor requests.
namespace millrace::grammar {

class LazyDfa;
struct AdaptiveTokenMask;

/// An output constraint, compiled for one vocabulary. Shared by all outputs that it constrains; const methods are
/// thread-safe.
class Grammar {
 public:
  /// Compiles a definition and the masks of its largest states, which takes some milliseconds per state.
  /// `stop_token_ids` end an output. Fails as Automaton::compile does, and if no token can begin the text after the
  /// prefix.
  [[nodiscard]] static Result<std::shared_ptr<const Grammar>> compile(const Definition& definition,
                                                                      std::shared_ptr<const Vocabulary> vocabulary,
                                                                      std::vector<TokenId> stop_token_ids);
  Grammar(Automaton automaton, std::string prefix, std::shared_ptr<const Vocabulary> vocabulary,
          std::vector<TokenId> stop_token_ids);
  ~Grammar();

  [[nodiscard]] const Automaton& automaton() const { return automaton_; }
  [[nodiscard]] const Vocabulary& vocabulary() const { return *vocabulary_; }
  /// Returns the stop tokens in ascending order.
  [[nodiscard]] const std::vector<TokenId>& stop_token_ids() const { return stop_token_ids_; }

 private:
  friend class Matcher;
  friend class LazyDfa;

  /// Returns the DFA for new matchers. Replaces a DFA that has grown too large.
  [[nodiscard]] std::shared_ptr<LazyDfa> dfa() const;
  void precompute_masks() const;

  const Automaton automaton_;
  const std::string prefix_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const std::vector<TokenId> stop_token_ids_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<LazyDfa> dfa_;  // guarded by mutex_
  mutable std::unordered_map<uint64_t, std::unique_ptr<const AdaptiveTokenMask>>
      adaptive_masks_;  // by state and loop; guarded by mutex_
};

/// The position of one output in a grammar. Owned by its sequence and used by one thread at a time.
class Matcher {
 public:
  /// Starts at the beginning. With `samples_end_token`, masks include the stop tokens where the text may end.
  Matcher(std::shared_ptr<const Grammar> grammar, bool samples_end_token);

  /// Returns the tokens that may come next. Null if no token can spell what must follow, or if the work budget ends.
  [[nodiscard]] std::shared_ptr<const TokenMask> allowed() const;
  /// Appends a token to the output. Returns false and changes nothing if the token may not come next. A stop token
  /// changes nothing.
  [[nodiscard]] bool advance(TokenId token);
  /// Returns the longest token of `allowed` if its text begins with the text of every other: then no other text can
  /// come. Returns nothing for more than 64 tokens. `allowed` is this matcher's mask.
  [[nodiscard]] std::optional<TokenId> forced(const TokenMask& allowed) const;
  /// Returns whether the output matches the grammar as it is.
  [[nodiscard]] bool may_end() const;
  /// Returns whether the output matches and nothing can follow.
  [[nodiscard]] bool must_end() const;

 private:
  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<LazyDfa> dfa_;
  uint32_t dfa_state_ = 0;
  bool samples_end_token_;
};

}  // namespace millrace::grammar
