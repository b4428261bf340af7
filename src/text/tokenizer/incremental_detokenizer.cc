#include "text/tokenizer/incremental_detokenizer.h"

#include <algorithm>

#include "base/utf8.h"

namespace millrace::text {
namespace {

/// The number of last tokens that can hold the start of an incomplete character: each has at least one byte.
constexpr size_t kPromptTail = 8;

}  // namespace

void IncrementalDetokenizer::continue_from_prompt(std::span<const TokenId> prompt) {
  if (prompt.empty()) return;
  state_.at_first_token = false;
  const auto tail = prompt.subspan(prompt.size() - std::min(prompt.size(), kPromptTail));
  std::string bytes;
  for (const TokenId id : tail) bytes += tokenizer_->token_bytes(id);
  state_.stripped = SIZE_MAX;
  pending_ = std::move(bytes);
  take_complete();
  if (tokenizer_->is_run_byte(prompt.back())) {
    state_.foreign_bytes = pending_.size();
    state_.byte_run = std::exchange(pending_, {});
  } else {
    prompt_bytes_ = pending_.size();
  }
}

std::string IncrementalDetokenizer::settle_before(TokenId id) {
  tokenizer_->settle_before(id, skip_special_tokens_, state_, pending_);
  return take_complete();
}

std::string IncrementalDetokenizer::push(TokenId id) {
  tokenizer_->append_bytes(id, skip_special_tokens_, state_, pending_);
  return take_complete();
}

std::string IncrementalDetokenizer::push(std::span<const TokenId> ids) {
  for (const TokenId id : ids) tokenizer_->append_bytes(id, skip_special_tokens_, state_, pending_);
  return take_complete();
}

std::string IncrementalDetokenizer::flush() {
  tokenizer_->finish_bytes(state_, pending_);
  std::string rest = pending_.size() > prompt_bytes_ ? replace_invalid_utf8(pending_) : std::string();
  pending_.clear();
  return rest;
}

std::string IncrementalDetokenizer::take_complete() {
  std::string text;
  size_t done = 0;
  while (done < pending_.size()) {
    const DecodedUtf8 step = decode_utf8(std::string_view(pending_).substr(done));
    if (step.truncated) break;
    if (step.valid) {
      text.append(pending_, done, step.length);
    } else if (step.length > prompt_bytes_) {
      text += kReplacementUtf8;
    }
    prompt_bytes_ = 0;
    done += step.length;
  }
  pending_.erase(0, done);
  return text;
}

}  // namespace millrace::text
