#include "text/tool_calls/output_parser.h"

#include <algorithm>
#include <utility>

#include "text/tool_calls/partial_match.h"

namespace millrace::text {
namespace {

constexpr std::string_view kOpen = kReasoningStart;

}  // namespace

bool prompt_opens_reasoning(std::string_view prompt) {
  return prompt.substr(0, size_without_space(prompt)).ends_with(kOpen);
}

bool prompt_closes_reasoning(std::string_view prompt) {
  return without_space(prompt).ends_with(kReasoningEnd);
}

bool is_within_reasoning(std::string_view begun_answer) {
  const size_t at = begun_answer.find(kOpen);
  return at != std::string_view::npos && begun_answer.find(kReasoningEnd, at) == std::string_view::npos;
}

bool template_has_reasoning(std::string_view source) {
  return source.find(kReasoningEnd) != std::string_view::npos;
}

void ReasoningParser::push(std::string_view text, std::string& reasoning, std::string& rest) {
  pending_ += text;
  while (!pending_.empty() && step(reasoning, rest)) {
  }
}

/// Consumes from pending_; false where more has to come first.
bool ReasoningParser::step(std::string& reasoning, std::string& rest) {
  if (phase_ == Phase::kRest) {
    rest += std::exchange(pending_, {});
    return false;
  }
  const size_t first = pending_.find_first_not_of(kAsciiSpace);
  if (phase_ == Phase::kStart) {
    if (first == std::string::npos) return false;
    const std::string_view begin = std::string_view(pending_).substr(first);
    const bool opens = begin.starts_with(kOpen);
    if (!opens && kOpen.starts_with(begin)) return false;
    if (opens) pending_.erase(0, first + kOpen.size());
    phase_ = opens ? Phase::kBegin : Phase::kRest;
    has_opened_ = opens;
    return true;
  }
  if (phase_ != Phase::kReasoning) {
    if (first == std::string::npos) {
      pending_.clear();
      return false;
    }
    pending_.erase(0, first);
    phase_ = phase_ == Phase::kBegin ? Phase::kReasoning : Phase::kRest;
    return true;
  }
  const size_t at = pending_.find(kReasoningEnd);
  const bool is_found = at != std::string::npos;
  size_t end = is_found ? at : pending_.size() - partial_match_length(pending_, kReasoningEnd);
  const size_t trimmed = size_without_space(std::string_view(pending_).substr(0, end));
  if (is_found || end - trimmed <= kMaxHeldBackSpace) end = trimmed;
  reasoning.append(pending_, 0, end);
  pending_.erase(0, is_found ? at + kReasoningEnd.size() : end);
  if (is_found) phase_ = Phase::kGap;
  return is_found;
}

void ReasoningParser::finish(std::string& reasoning, std::string& rest) {
  std::string& target = phase_ == Phase::kReasoning ? reasoning : rest;
  if (phase_ == Phase::kReasoning) pending_.resize(size_without_space(pending_));
  if (phase_ != Phase::kBegin && phase_ != Phase::kGap) target += pending_;
  pending_.clear();
}

OutputParser::OutputParser(const OutputFormat& format)
    : format_(format),
      may_lack_start_(format.splits_reasoning && !format.begins_in_reasoning && !format.reasoning_is_closed) {
  if (format.splits_reasoning) reasoning_.emplace(format.begins_in_reasoning);
  make_tool_parser();
}

void OutputParser::make_tool_parser() {
  if (format_.tools) tools_.emplace(*format_.tools, format_.parameter_types);
}

void OutputParser::push(std::string_view text, OutputPart& out) {
  if (!reasoning_) return push_rest(text, out);
  std::string rest;
  reasoning_->push(text, out.reasoning, rest);
  push_unopened(rest, out);
}

void OutputParser::push_unopened(std::string_view text, OutputPart& out) {
  if (skips_space_) {
    text.remove_prefix(std::min(text.find_first_not_of(kAsciiSpace), text.size()));
    skips_space_ = text.empty();
  }
  if (!may_lack_start_ || reasoning_->has_opened()) return push_rest(text, out);
  pending_ += text;
  const size_t end = pending_.find(kReasoningEnd);
  const bool is_ended = end != std::string::npos && pending_.find(kOpen) > end;
  if (is_ended) {
    may_lack_start_ = false;
    const std::string all = std::exchange(pending_, {});
    skips_space_ = end_unopened(std::string_view(all).substr(0, end), out);
    return push_unopened(std::string_view(all).substr(end + (skips_space_ ? kReasoningEnd.size() : 0)), out);
  }
  may_lack_start_ = pending_.find(kOpen) == std::string::npos;
  const size_t held =
      may_lack_start_ ? std::max(partial_match_length(pending_, kReasoningEnd), partial_match_length(pending_, kOpen))
                      : 0;
  push_rest(std::string_view(pending_).substr(0, pending_.size() - held), out);
  pending_.erase(0, pending_.size() - held);
}

bool OutputParser::end_unopened(std::string_view before, OutputPart& out) {
  push_rest(before, out);
  if (tools_ && tools_->started_calls() > 0) return false;
  if (tools_) tools_->finish(out.content);
  make_tool_parser();
  out.content_was_reasoning = true;
  out.reasoning += std::exchange(out.content, {});
  return true;
}

void OutputParser::push_rest(std::string_view text, OutputPart& out) {
  if (tools_) {
    tools_->push(text, out.content, out.calls);
  } else {
    out.content += text;
  }
}

void OutputParser::finish(OutputPart& out) {
  std::string rest;
  if (reasoning_) {
    reasoning_->finish(out.reasoning, rest);
    push_unopened(rest, out);
    rest = std::exchange(pending_, {});
  }
  push_rest(rest, out);
  if (tools_) tools_->finish(out.content);
}

}  // namespace millrace::text
