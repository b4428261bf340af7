#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "grammar/grammar.h"
#include "tensor/sampling.h"

namespace millrace::sim {

/// A model of hashes instead of numbers: each layer writes a value per token into its KV and reads all earlier ones, so
/// that a wrong page, a missing token or a wrong order changes every token that follows. What a row yields depends on
/// its tokens alone, not on stages, chunks or batches; what is drawn from it on all that a draw may depend on besides.
struct SimulatedModel {
  int32_t layer_count = 4;
  uint32_t vocab_size = 1000;
  uint32_t distinct_tokens =
      UINT32_MAX;              ///< of what may be drawn only the first so many are: texts that repeat themselves
  uint32_t faulty_one_in = 0;  ///< after one row of so many nothing can be drawn, as from logits of NaN; 0: after none

  [[nodiscard]] static uint64_t mix(uint64_t a, uint64_t b);
  /// What a layer stores for a token whose hidden value is `hidden`.
  [[nodiscard]] static uint64_t key_value(int32_t layer, uint64_t hidden);
  /// Adds the KV of the next position to a running value over the context.
  [[nodiscard]] static uint64_t attend(uint64_t context, uint64_t key_value);
  [[nodiscard]] static uint64_t embed(TokenId token);
  [[nodiscard]] TokenId draw(uint64_t hidden, const tensor::SampleSpec& spec) const;
  /// Nothing can be drawn after this row.
  [[nodiscard]] bool faulty(uint64_t hidden) const;
  /// How likely a row finds it that `token` comes next, and `top` alternatives.
  [[nodiscard]] tensor::TokenLogprobs score(uint64_t hidden, TokenId token, int32_t top) const;

  /// Computed without pages, plans or stages.
  struct Continuation {
    std::vector<TokenId> tokens;
    std::vector<tensor::TokenLogprobs> scores;         // [tokens]
    std::vector<tensor::TokenLogprobs> prompt_scores;  // [prompt - 1] of each token after the first
    bool faulty = false;                               ///< nothing can be drawn after those tokens
    bool complete = false;                             ///< they are all that the grammar has
  };
  /// `prompt` and `count` tokens after it, or as many as can be drawn, or as the grammar has, whose ends are not drawn;
  /// `prompt_top` alternatives to those of the prompt.
  [[nodiscard]] Continuation generate(std::span<const TokenId> prompt, size_t count,
                                      const tensor::SamplingParams& sampling, int32_t prompt_top = 0,
                                      const std::shared_ptr<const grammar::Grammar>& grammar = nullptr) const;
};

}  // namespace millrace::sim
