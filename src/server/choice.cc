#include "server/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/random.h"
#include "sched/plan/generate_event.h"
#include "server/prompt_offsets.h"
#include "text/tool_calls/partial_match.h"
#include "text/unicode.h"

namespace millrace::server {
namespace {

/// Returns `logprobs` with at most `most` alternatives: the engine scores a prompt once, for all its choices.
tensor::TokenLogprobs with_alternatives(tensor::TokenLogprobs logprobs, size_t most) {
  logprobs.top.resize(std::min(logprobs.top.size(), most));
  return logprobs;
}

template <class Item>
bool contains(const std::vector<Item>& items, const Item& item) {
  return std::ranges::find(items, item) != items.end();
}

/// Returns what the delta adds to a call. Begins it, after `text_before` bytes of the text, unless it is the last.
ToolCallDelta& delta_of(uint32_t call, size_t text_before, ChoiceDelta& delta) {
  if (delta.calls.empty() || delta.calls.back().index != call) {
    ToolCallDelta& added = delta.calls.emplace_back();
    added.index = call;
    added.text_before = text_before;
  }
  return delta.calls.back();
}

}  // namespace

Choice::Choice(const ChoiceOptions& options, const TokenizedPrompt& prompt, uint32_t index)
    : options_(options),
      prompt_(prompt),
      detokenizer_(options.tokenizer, options.skip_special_tokens),
      stops_(options.stop, options.include_stop),
      index_(index) {
  if (!options.output_format.is_plain()) output_parser_.emplace(options.output_format);
  detokenizer_.continue_from_prompt(prompt.ids);
}

void Choice::consume(sched::GenerateEvent& event, ChoiceDelta& delta) {
  if (finished()) return;
  if (!started_) start(event, delta);
  cached_tokens_ = std::max(cached_tokens_, event.cached_tokens);
  accepted_predictions_ += event.accepted_predictions;
  rejected_predictions_ += event.rejected_predictions;
  const bool has_logprobs = options_.logprobs && event.logprobs.size() == event.tokens.size();
  const bool drew_stop = event.finish == sched::FinishReason::kStop;
  for (size_t i = 0; i < event.tokens.size(); ++i) {
    const TokenId token = event.tokens[i];
    std::string piece = detokenizer_.settle_before(token);
    if (options_.logprobs) text_offset_ += static_cast<uint32_t>(text::count_code_points(piece));
    if (has_logprobs) delta.logprobs.push_back({std::move(event.logprobs[i]), text_offset_, true});
    const bool is_stop_token = drew_stop && i + 1 == event.tokens.size() && contains(options_.stop_token_ids, token);
    const bool cut = add_token(token, !is_stop_token || options_.include_stop, std::move(piece), delta);
    if (is_stop_token && contains(options_.user_stop_token_ids, token)) delta.stop_token = token;
    if (cut) {
      if (stops_.matched()) delta.stop_text = options_.stop[*stops_.matched()];
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
  if (!options_.output_format.prefix.empty()) show(options_.output_format.prefix, delta);
  if (!options_.prompt_logprobs) return;
  for (tensor::TokenLogprobs& scored : event.prompt_logprobs) {
    delta.prompt_logprobs.push_back(with_alternatives(std::move(scored), options_.top_prompt_logprobs));
  }
}

void Choice::add_echo(sched::GenerateEvent& event, ChoiceDelta& delta) {
  delta.text += prompt_.text;
  if (options_.logprobs) {
    const std::vector<uint32_t> offsets = prompt_offsets(options_, prompt_);
    for (size_t i = 0; i < event.prompt_logprobs.size() && i < prompt_.ids.size(); ++i) {
      delta.logprobs.push_back(
          {with_alternatives(event.prompt_logprobs[i], options_.top_logprobs), offsets[i], i != 0});
    }
  }
  text_offset_ = static_cast<uint32_t>(text::count_code_points(prompt_.text));
}

bool Choice::add_token(TokenId token, bool is_shown, std::string piece, ChoiceDelta& delta) {
  ++completion_tokens_;
  if (output_parser_ && output_parser_->in_reasoning()) ++reasoning_tokens_;
  delta.tokens.push_back(token);
  if (is_shown) {
    const std::string own = detokenizer_.push(token);
    if (options_.logprobs) text_offset_ += static_cast<uint32_t>(text::count_code_points(own));
    piece += own;
  }
  if (piece.empty()) return false;
  if (options_.stop.empty()) {
    show(piece, delta);
  } else {
    show(stops_.push(piece, completion_tokens_ > options_.min_tokens), delta);
  }
  const bool has_tool_calls = output_parser_ && output_parser_->calls_finished() > 0;
  return stops_.matched() || (has_tool_calls && !options_.parallel_tool_calls);
}

void Choice::show(std::string_view text, ChoiceDelta& delta) {
  if (!output_parser_) {
    delta.text += text;
    return;
  }
  text::OutputPart part;
  output_parser_->push(text, part);
  take(std::move(part), delta);
}

void Choice::take(text::OutputPart part, ChoiceDelta& delta) {
  if (part.content_was_reasoning) {
    // A stream has sent some of it as content already.
    part.reasoning.insert(0, std::exchange(delta.text, {}));
    part.reasoning.resize(text::size_without_space(part.reasoning));
    reasoning_tokens_ = completion_tokens_;
  }
  const size_t text_before = delta.text.size();
  delta.text += part.content;
  if (options_.include_reasoning) delta.reasoning += part.reasoning;
  for (text::ToolCallPart& call : part.calls) {
    if (call.index != open_call_) end_custom_call(text_before, delta);
    open_call_ = call.index;
    ToolCallDelta& target = delta_of(call.index, text_before + call.content_before, delta);
    if (!call.name.empty()) {
      target.id = call.id.empty() ? call_id(call.index) : call.id;
      if (contains(options_.custom_tools, call.name)) custom_input_.emplace();
    }
    target.name += call.name;
    // A custom call has its input until it ends, after its last part.
    target.is_custom = custom_input_.has_value();
    target.arguments += custom_input_ ? custom_input_->push(call.arguments) : call.arguments;
  }
  if (output_parser_->calls_finished() > open_call_) end_custom_call(text_before, delta);
}

void Choice::end_custom_call(size_t text_before, ChoiceDelta& delta) {
  if (!custom_input_) return;
  const std::string rest = custom_input_->finish();
  custom_input_.reset();
  if (rest.empty()) return;
  ToolCallDelta& target = delta_of(open_call_, text_before, delta);
  target.is_custom = true;
  target.arguments += rest;
}

/// Returns the call's id: nine letters and digits where Mistral's templates require them.
std::string Choice::call_id(uint32_t call) const {
  constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const uint64_t seed = options_.call_id_seed;
  const auto words = philox4x32({static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, {index_, call, 2, 0});
  uint64_t value = (uint64_t{words[0]} << 32) | words[1];
  const auto format = options_.output_format.tools;
  const bool is_mistral = format == text::ToolFormat::kMistral || format == text::ToolFormat::kMistralV11 ||
                          format == text::ToolFormat::kMistralV13;
  if (!is_mistral) return fmt::format("call_{:016x}{:08x}", value, words[2]);
  std::string id;
  for (int i = 0; i < 9; ++i, value /= kDigits.size()) id += kDigits[value % kDigits.size()];
  return id;
}

void Choice::finish_with(sched::FinishReason reason, ChoiceDelta& delta) {
  if (!stops_.matched()) {
    show(stops_.push(detokenizer_.flush()), delta);
    show(stops_.flush(), delta);
  }
  if (output_parser_) {
    text::OutputPart part;
    output_parser_->finish(part);
    if (!options_.parallel_tool_calls) std::erase_if(part.calls, [](const auto& call) { return call.index > 0; });
    take(std::move(part), delta);
    end_custom_call(delta.text.size(), delta);
    delta.has_tool_calls = output_parser_->calls_started() > 0;
    delta.has_open_call = output_parser_->calls_started() > output_parser_->calls_finished();
  }
  finish_ = reason;
  delta.finish = reason;
}

}  // namespace millrace::server
