#pragma once

#include <memory>
#include <span>
#include <string>

#include "text/tokenizer/tokenizer.h"

namespace millrace::text {

/// Turns the tokens of one sequence, as they come, into text. What it emits, joined, is what Tokenizer::decode gives
/// for all tokens together; a character is emitted whole, when its last byte is known. One per sequence, one thread at
/// a time; it keeps the tokenizer alive.
class IncrementalDetokenizer {
 public:
  IncrementalDetokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens)
      : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {}

  /// Makes the output the continuation of a prompt: nothing of the prompt is emitted but the start of a character that
  /// the output completes, and what stands at the start of a text only (a stripped space) no longer applies. Call
  /// before the first push.
  void continue_from_prompt(std::span<const TokenId> prompt);

  /// The text that `id` completes; empty while a character is incomplete.
  [[nodiscard]] std::string push(TokenId id);
  [[nodiscard]] std::string push(std::span<const TokenId> ids);
  /// At the end of the sequence: U+FFFD for an incomplete character, if there is one.
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
