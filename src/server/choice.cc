#include "server/choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"
#include "text/unicode.h"

namespace millrace::server {
namespace {

/// The engine scores a prompt once, for whoever asks for the most alternatives.
tensor::TokenLogprobs with_alternatives(tensor::TokenLogprobs logprobs, size_t most) {
  logprobs.top.resize(std::min(logprobs.top.size(), most));
  return logprobs;
}

bool contains(const std::vector<TokenId>& ids, TokenId id) {
  return std::ranges::find(ids, id) != ids.end();
}

}  // namespace

Choice::Choice(const ChoiceOptions& options, const PreparedPrompt& prompt)
    : options_(options),
      prompt_(prompt),
      detokenizer_(options.tokenizer, options.skip_special_tokens),
      stops_(options.stop, options.include_stop) {
  detokenizer_.follow_prompt(prompt.ids);
}

void Choice::consume(sched::GenerateEvent& event, ChoiceDelta& delta) {
  if (finished()) return;
  if (!started_) start(event, delta);
  cached_tokens_ = std::max(cached_tokens_, event.cached_tokens);
  const bool has_logprobs = options_.logprobs && event.logprobs.size() == event.tokens.size();
  const bool drew_stop = event.finish == sched::FinishReason::kStop;
  for (size_t i = 0; i < event.tokens.size(); ++i) {
    const TokenId token = event.tokens[i];
    if (has_logprobs) delta.logprobs.push_back({std::move(event.logprobs[i]), text_offset_, true});
    const bool is_stop_token = drew_stop && i + 1 == event.tokens.size() && contains(options_.stop_token_ids, token);
    const bool cut = add_token(token, !is_stop_token || options_.include_stop, delta);
    if (is_stop_token && contains(options_.own_stop_token_ids, token)) delta.stop_token = token;
    if (cut) {
      delta.stop_text = options_.stop[*stops_.matched()];
      finish_with(sched::FinishReason::kStop, delta);
      return;
    }
  }
  if (event.finish) finish_with(*event.finish, delta);
}

void Choice::start(sched::GenerateEvent& event, ChoiceDelta& delta) {
  started_ = true;
  delta.first = true;
  if (options_.echo) add_echo(event, delta);
  if (!options_.prompt_logprobs) return;
  for (tensor::TokenLogprobs& scored : event.prompt_logprobs) {
    delta.prompt_logprobs.push_back(with_alternatives(std::move(scored), options_.top_prompt_logprobs));
  }
}

void Choice::add_echo(sched::GenerateEvent& event, ChoiceDelta& delta) {
  delta.text += prompt_.text;
  if (options_.logprobs) {
    text::IncrementalDetokenizer prompt_detokenizer(options_.tokenizer, options_.skip_special_tokens);
    uint32_t offset = 0;
    for (size_t i = 0; i < event.prompt_logprobs.size() && i < prompt_.ids.size(); ++i) {
      delta.logprobs.push_back({with_alternatives(event.prompt_logprobs[i], options_.top_logprobs), offset, i != 0});
      offset += static_cast<uint32_t>(text::count_code_points(prompt_detokenizer.push(prompt_.ids[i])));
    }
  }
  text_offset_ = static_cast<uint32_t>(text::count_code_points(prompt_.text));
}

bool Choice::add_token(TokenId token, bool show, ChoiceDelta& delta) {
  ++completion_tokens_;
  delta.tokens.push_back(token);
  if (!show) return false;
  const std::string piece = detokenizer_.push(token);
  if (piece.empty()) return false;
  if (options_.logprobs) text_offset_ += static_cast<uint32_t>(text::count_code_points(piece));
  if (options_.stop.empty()) {
    delta.text += piece;
    return false;
  }
  delta.text += stops_.push(piece, completion_tokens_ > options_.min_tokens);
  return stops_.matched().has_value();
}

void Choice::finish_with(sched::FinishReason reason, ChoiceDelta& delta) {
  if (!stops_.matched()) {
    delta.text += stops_.push(detokenizer_.flush());
    delta.text += stops_.flush();
  }
  finish_ = reason;
  delta.finish = reason;
}

std::string token_text(const text::Tokenizer& tokenizer, TokenId token) {
  std::string bytes = tokenizer.token_bytes(token);
  if (is_valid_utf8(bytes)) return bytes;
  std::string escaped = "bytes:";
  for (const char c : bytes) escaped += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return escaped;
}

}  // namespace millrace::server
