#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/token_mask.h"

namespace millrace::sched {

/// Where a draft comes from.
enum class DraftSource : uint8_t {
  kHistory,     ///< it stood behind the same tokens earlier in the sequence
  kPrediction,  ///< the client expects it
  kGrammar,     ///< the answer's grammar leaves no other text
};
inline constexpr size_t kDraftSources = 3;
inline constexpr std::array<std::string_view, kDraftSources> kDraftSourceNames = {"ngram", "prediction", "form"};

/// A token that a sequence may draw, computed before it is known whether it does.
struct Draft {
  TokenId token = 0;
  DraftSource source = DraftSource::kHistory;
  std::shared_ptr<const TokenMask> allowed;  ///< what the answer's grammar lets be drawn behind it, if it has one
};

/// What has become of drafts since the start, by source.
struct DraftCounts {
  std::array<uint64_t, kDraftSources> drafted{};
  std::array<uint64_t, kDraftSources> accepted{};
};

/// Finds what one sequence may draw next in what it has been so far (prompt lookup: Saxena, 2023; Yang et al.,
/// "Inference with Reference", 2023) and in the client's prediction of its answer, and learns how often that is right.
/// Plain data of the scheduler; a pure function of the tokens and of what came of the drafts.
class Drafter {
 public:
  /// `uses_history`: what the sequence has been so far counts too.
  Drafter(uint32_t prompt_length, std::vector<TokenId> prediction, bool uses_history);

  /// Up to `most` tokens behind `tokens`, the whole sequence, which has only grown since the last call. Looks at 65536
  /// of a long prompt's tokens at a time; until it has seen all of them it finds nothing.
  [[nodiscard]] std::vector<Draft> propose(std::span<const TokenId> tokens, size_t most);
  /// How likely a draft of that source is right, when those before it are.
  [[nodiscard]] double acceptance(DraftSource source) const { return acceptance_[static_cast<size_t>(source)]; }
  /// Of these drafts the first `accepted` were drawn and, if there are more, the next was not.
  void record_outcome(std::span<const Draft> drafts, size_t accepted);
  /// There was something to draft, and it seemed too unlikely: with time it will be tried again.
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
  size_t indexed_tokens_ = 0;         // tokens of the sequence
  size_t predicted_at_ = 0;           // in prediction_: what is expected next
  uint32_t misses_ = 0;               // tokens that have come instead of the last predicted ones
  std::optional<size_t> history_at_;  // in the sequence: what followed when it went on like this before
  std::vector<uint32_t> ends_;        // an open hash table of n-grams: where each ended last; 0: an empty slot
  std::array<double, kDraftSources> acceptance_;
};

}  // namespace millrace::sched
