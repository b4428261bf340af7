#pragma once

#include <memory>
#include <span>
#include <string>

#include "text/tokenizer/tokenizer.h"

namespace millrace::text {

/// Turns the tokens of one sequence, as they come, into text. What it emits, joined, is what Tokenizer::decode gives
/// for all tokens together. A character is emitted whole, when its last byte is known; the text of <0xNN> tokens waits
/// for the end of their run. One per sequence, one thread at a time. Keeps the tokenizer alive.
class IncrementalDetokenizer {
 public:
  IncrementalDetokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens)
      : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {}

  /// Makes the output the continuation of a prompt. Of the prompt, only the start of a character that the output
  /// completes is emitted. Rules for the start of a text (a stripped space) no longer apply. Call before the first
  /// push.
  void continue_from_prompt(std::span<const TokenId> prompt);

  /// Returns the text of earlier tokens that is certain now that `id` follows; the next `push` takes `id`.
  [[nodiscard]] std::string settle_before(TokenId id);
  /// Returns the text that `id` completes; empty while a character is incomplete.
  [[nodiscard]] std::string push(TokenId id);
  [[nodiscard]] std::string push(std::span<const TokenId> ids);
  /// Returns U+FFFD for an incomplete character at the end of the sequence, if there is one.
  [[nodiscard]] std::string flush();

 private:
  std::string take_complete();

  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_tokens_;
  Tokenizer::DecodeState state_;
  std::string pending_;      ///< at most three bytes between calls: the start of a character
  size_t prompt_bytes_ = 0;  ///< of pending_, at its start: the prompt's
};

}  // namespace millrace::text
