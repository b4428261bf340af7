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

/// What an answer may look like, and which tokens may come next. Notations (regular expressions, EBNF, JSON schemas)
/// are read into a Definition, which becomes an Automaton; a Grammar is that over a model's vocabulary, and a Matcher
/// follows one answer through it. Nothing here knows of models, requests or text that has to be split into tokens.
namespace millrace::grammar {

class LazyDfa;
struct AdaptiveTokenMask;

/// Shared by all answers that are held to it; its const methods are thread-safe.
class Grammar {
 public:
  /// Errors: as Automaton::compile, and where no token begins what may follow the forced prefix. `stop_token_ids` are
  /// the tokens that end an answer. Also finds out what most of the vocabulary may follow in, which takes some
  /// milliseconds per such state of the grammar.
  [[nodiscard]] static Result<std::shared_ptr<const Grammar>> compile(const Definition& definition,
                                                                      std::shared_ptr<const Vocabulary> vocabulary,
                                                                      std::vector<TokenId> stop_token_ids);
  Grammar(Automaton automaton, std::string prefix, std::shared_ptr<const Vocabulary> vocabulary,
          std::vector<TokenId> stop_token_ids);
  ~Grammar();

  [[nodiscard]] const Automaton& automaton() const { return automaton_; }
  [[nodiscard]] const Vocabulary& vocabulary() const { return *vocabulary_; }
  /// Ascending.
  [[nodiscard]] const std::vector<TokenId>& stop_token_ids() const { return stop_token_ids_; }

 private:
  friend class Matcher;
  friend class LazyDfa;

  /// What new answers use: the old one grows with whatever states answers have come to.
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

/// One answer on its way. Used by one thread at a time.
class Matcher {
 public:
  /// `samples_end_token`: the tokens that end an answer may be drawn where the text may end.
  Matcher(std::shared_ptr<const Grammar> grammar, bool samples_end_token);

  /// The tokens that may come next, of the grammar's vocabulary. Null: none, though the text is not whole: the tokens'
  /// texts cannot spell what has to follow, or it would be nested too deeply.
  [[nodiscard]] std::shared_ptr<const TokenMask> allowed() const;
  /// Goes on by a token. False, and nothing changes, if it may not come next. One that ends the answer changes nothing.
  [[nodiscard]] bool advance(TokenId token);
  /// The longest of the tokens in `allowed`, this matcher's own, if the texts of all the others are beginnings of its
  /// text: no other text can come, however it is cut into tokens. Nothing where more than 64 tokens can.
  [[nodiscard]] std::optional<TokenId> forced(const TokenMask& allowed) const;
  /// The text is whole.
  [[nodiscard]] bool may_end() const;
  /// Nothing can follow it.
  [[nodiscard]] bool must_end() const;

 private:
  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<LazyDfa> dfa_;
  uint32_t dfa_state_ = 0;
  bool samples_end_token_;
};

}  // namespace millrace::grammar
