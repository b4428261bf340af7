#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/token_mask.h"
#include "grammar/adaptive_masks.h"
#include "grammar/automaton.h"
#include "grammar/vocabulary.h"

/// Compiled output constraints and their token masks. Each notation is read into a Definition, which compiles to an
/// Automaton. A Grammar is an automaton over a vocabulary, and a Matcher follows one output through it. The folder
/// knows neither models nor requests.
namespace millrace::grammar {

class LazyDfa;

/// Bounds of a grammar's work, in steps of WorkBudget, and of its memory.
struct GrammarLimits {
  uint64_t first_mask_steps = 20'000'000;  ///< a grammar whose first mask takes more is refused
  uint64_t precompute_steps = 2'000'000;   ///< to compile: for masks that outputs will probably need
  size_t dfa_bytes = size_t{16} << 20;     ///< a DFA with more is full, and is replaced by a new one
  /// The memory of one output's position, beyond which nothing can follow. Only a grammar that reads a text in ever
  /// more ways comes there. Much smaller than dfa_bytes.
  size_t position_bytes = size_t{4} << 20;
  size_t adaptive_bytes = size_t{24} << 20;  ///< for all adaptive masks; those unused for longest are dropped
};

/// An output constraint, compiled for one vocabulary. Shared by all outputs that it constrains; const methods are
/// thread-safe.
class Grammar {
 public:
  /// Compiles a definition, computes the first mask, and some others ahead of use. `stop_token_ids` end an output.
  /// Fails as Automaton::compile does, if the first mask exceeds its limit, and if no token can begin the text after
  /// the prefix.
  [[nodiscard]] static Result<std::shared_ptr<const Grammar>> compile(const Definition& definition,
                                                                      std::shared_ptr<const Vocabulary> vocabulary,
                                                                      std::vector<TokenId> stop_token_ids,
                                                                      const GrammarLimits& limits = {});
  Grammar(Automaton automaton, std::string prefix, std::shared_ptr<const Vocabulary> vocabulary,
          std::vector<TokenId> stop_token_ids, const GrammarLimits& limits);
  ~Grammar();

  [[nodiscard]] const GrammarLimits& limits() const { return limits_; }
  [[nodiscard]] const Automaton& automaton() const { return automaton_; }
  [[nodiscard]] const Vocabulary& vocabulary() const { return *vocabulary_; }
  /// Returns the stop tokens in ascending order.
  [[nodiscard]] const std::vector<TokenId>& stop_token_ids() const { return stop_token_ids_; }
  /// Returns the mask of the beginning, with the stop tokens if asked for and if the text may end there.
  [[nodiscard]] const std::shared_ptr<const TokenMask>& first_mask(bool with_stop_tokens) const {
    return first_masks_[with_stop_tokens];
  }
  /// Returns the approximate memory use, without the vocabulary and without full DFAs that outputs still use.
  [[nodiscard]] size_t bytes() const;

 private:
  friend class Matcher;

  /// Returns the DFA for new work, under the mutex. Replaces it if it is full or the one that is given.
  [[nodiscard]] std::shared_ptr<LazyDfa> dfa(const LazyDfa* full) const;
  void precompute_masks() const;

  const Automaton automaton_;
  const std::string prefix_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const std::vector<TokenId> stop_token_ids_;
  const GrammarLimits limits_;
  std::shared_ptr<const TokenMask> first_masks_[2];  // without and with stop tokens; null during compile()
  mutable std::mutex mutex_;
  mutable std::shared_ptr<LazyDfa> dfa_;  // guarded by mutex_, with all that is in it
  mutable AdaptiveMasks adaptive_;        // guarded by mutex_
};

}  // namespace millrace::grammar
