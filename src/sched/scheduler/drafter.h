#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/token_mask.h"
#include "sched/plan/draft_counts.h"

namespace millrace::sched {

/// A guessed token that a decode step computes before it is sampled.
struct Draft {
  TokenId token = 0;
  DraftSource source = DraftSource::kHistory;
  std::shared_ptr<const TokenMask> allowed;  ///< with a grammar: the tokens that it allows next after this one
};

/// Guesses a sequence's next tokens from its own tokens and from the client's prediction, and estimates how often each
/// source is right. Source: prompt lookup (Saxena, 2023; Yang et al., "Inference with Reference", 2023). It depends
/// only on the tokens and on the outcomes of drafts. Plain data, owned by its Sequence.
class Drafter {
 public:
  /// `uses_history`: the sequence's own tokens are a source too.
  Drafter(uint32_t prompt_length, std::vector<TokenId> prediction, bool uses_history);

  /// Returns up to `max_count` drafts to follow `tokens`, which is the whole sequence and has only grown since the last
  /// call. A long prompt is read in parts of 65536 tokens per call, without drafts until all of it is read.
  [[nodiscard]] std::vector<Draft> propose(std::span<const TokenId> tokens, size_t max_count);
  /// Returns the probability that a draft of that source is accepted if those before it are.
  [[nodiscard]] double acceptance(DraftSource source) const { return acceptance_[static_cast<size_t>(source)]; }
  /// Records that the first `accepted` of these drafts were accepted and the next one, if any, was rejected.
  void record_outcome(std::span<const Draft> drafts, size_t accepted);
  /// Notes that a draft of that source seemed too unlikely. Its probability returns to the initial one with time, so
  /// that the source is tried again.
  void skip(DraftSource source);

 private:
  void follow(std::span<const TokenId> tokens);
  void follow_prediction(std::span<const TokenId> tokens);
  [[nodiscard]] std::span<const TokenId> predicted() const;
  void index(std::span<const TokenId> tokens);
  void grow(std::span<const TokenId> tokens);
  [[nodiscard]] uint32_t& end_of_gram(std::span<const TokenId> tokens);

  const uint32_t prompt_length_;
  const std::vector<TokenId> prediction_;
  const bool uses_history_;
  size_t indexed_tokens_ = 0;         // tokens of the sequence that were read
  size_t predicted_at_ = 0;           // index in prediction_ of the token expected next
  uint32_t misses_ = 0;               // tokens in a row that differed from the prediction
  std::optional<size_t> history_at_;  // index in the sequence of the token that followed the same n-gram before
  std::vector<uint32_t> ends_;        // open hash table of n-grams: where each ended last; 0: an empty slot
  std::array<double, kDraftSources> acceptance_;
};

}  // namespace millrace::sched
