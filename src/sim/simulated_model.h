#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/group_kind.h"
#include "base/ids.h"
#include "grammar/matcher.h"
#include "sched/plan/request.h"
#include "tensor/sampling.h"

namespace millrace::sim {

/// A model of hashes instead of numbers: each layer writes a value per token into its KV and reads all earlier ones. So
/// a wrong page, a missing token or a wrong order changes every later token. A row's result depends on its tokens
/// alone, not on stages, chunks or batches; a sample also depends on the sampling parameters.
struct SimulatedModel {
  int32_t layer_count = 4;
  uint32_t vocab_size = 1000;
  uint32_t distinct_tokens = UINT32_MAX;  ///< bounds the sampled ids, so that texts repeat themselves
  uint32_t window = 0;                    ///< tokens that some layers see; 0: all layers see all
  bool all_slide = false;                 ///< all layers have the window, else every second one
  int32_t state_one_in = 0;               ///< one layer in this many keeps a state instead; 0: none
  uint32_t faulty_one_in = 0;             ///< one row in this many has no valid logits; 0: none

  /// Returns whether a layer keeps a state instead of a value per token.
  [[nodiscard]] bool keeps_state(int32_t layer) const { return state_one_in > 0 && (layer + 1) % state_one_in == 0; }
  /// Returns the window of a layer; 0: it sees all tokens.
  [[nodiscard]] uint32_t window_of(int32_t layer) const {
    return !keeps_state(layer) && (all_slide || layer % 2 == 1) ? window : 0;
  }
  /// Returns the model's window groups.
  [[nodiscard]] std::vector<WindowSpec> windows() const;
  /// Returns the first position that the token at `position` sees in a layer.
  [[nodiscard]] size_t first_visible(size_t position, int32_t layer) const;
  /// Returns the cache group of a layer.
  [[nodiscard]] uint32_t group_of(int32_t layer) const;
  /// Returns the values that a layer of a cache group keeps in a page.
  [[nodiscard]] uint32_t page_values(uint32_t group, uint32_t page_size) const;
  /// Returns the number of layers of [begin, end) in a cache group.
  [[nodiscard]] size_t layers_in(uint32_t group, int32_t begin, int32_t end) const;

  [[nodiscard]] static uint64_t mix(uint64_t a, uint64_t b);
  /// Returns what a layer stores for a token whose hidden value is `hidden`.
  [[nodiscard]] static uint64_t key_value(int32_t layer, uint64_t hidden);
  /// Adds the KV of the next position to a running value over the context.
  [[nodiscard]] static uint64_t attend(uint64_t context, uint64_t key_value);
  [[nodiscard]] static uint64_t embed(TokenId token);
  [[nodiscard]] TokenId draw(uint64_t hidden, const tensor::SampleSpec& spec) const;
  /// Returns whether this row has no valid logits.
  [[nodiscard]] bool faulty(uint64_t hidden) const;
  /// Returns the logprob of `token` after a row, with `top` alternatives.
  [[nodiscard]] tensor::TokenLogprobs score(uint64_t hidden, TokenId token, int32_t top) const;

  /// The length of pooled vectors.
  static constexpr uint32_t kPooledSize = 3;
  /// Adds a row to the running value of a sequence's pooled rows.
  [[nodiscard]] static uint64_t pool(uint64_t pooled, uint64_t hidden);
  /// Returns the vector that follows from pooled rows, and from how many there are.
  [[nodiscard]] static std::vector<float> pooled_vector(uint64_t pooled, uint64_t row_count);
  /// Returns the vector of a prompt, computed without pages, plans or stages; empty if the rows have no valid one.
  [[nodiscard]] std::vector<float> embed_prompt(std::span<const TokenId> prompt, sched::Pooling pooling) const;

  /// A continuation that is computed without pages, plans or stages.
  struct Continuation {
    std::vector<TokenId> tokens;
    std::vector<tensor::TokenLogprobs> scores;         // [tokens]
    std::vector<tensor::TokenLogprobs> prompt_scores;  // [prompt - 1] of each token after the first
    bool faulty = false;                               ///< the row after these tokens has no valid logits
    bool complete = false;                             ///< the grammar allows no further token
  };
  /// Continues `prompt` by `count` tokens, or fewer after a faulty row or at the end of the grammar, which samples no
  /// end token. Scores the prompt with `prompt_top` alternatives.
  [[nodiscard]] Continuation generate(std::span<const TokenId> prompt, size_t count,
                                      const tensor::SamplingParams& sampling, int32_t prompt_top = 0,
                                      const std::shared_ptr<const grammar::Grammar>& grammar = nullptr,
                                      const std::shared_ptr<const sched::ReasoningLimit>& limit = nullptr) const;

 private:
  /// What one layer attends to.
  struct Context {
    uint64_t running = 0;                // of a layer that sees all tokens
    std::vector<uint64_t> key_values{};  // of a layer with a window
  };
  /// Returns the last layer's row of one more token; `contexts` are the layers'.
  [[nodiscard]] uint64_t next_row(TokenId token, std::vector<Context>& contexts) const;
};

}  // namespace millrace::sim
