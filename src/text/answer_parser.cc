#include "text/answer_parser.h"

#include <utility>

#include "text/partial_match.h"

namespace millrace::text {
namespace {

constexpr std::string_view kOpen = kBeginOfReasoning;

}  // namespace

bool opens_reasoning(std::string_view prompt) {
  return prompt.substr(0, size_without_space(prompt)).ends_with(kOpen);
}

bool is_within_reasoning(std::string_view begun_answer) {
  const size_t at = begun_answer.find(kOpen);
  return at != std::string_view::npos && begun_answer.find(kEndOfReasoning, at) == std::string_view::npos;
}

bool template_reasons(std::string_view source) {
  return source.find(kEndOfReasoning) != std::string_view::npos;
}

void ReasoningSplitter::push(std::string_view text, std::string& reasoning, std::string& rest) {
  pending_ += text;
  while (!pending_.empty() && step(reasoning, rest)) {
  }
}

/// Consumes from pending_; false where more has to come first.
bool ReasoningSplitter::step(std::string& reasoning, std::string& rest) {
  if (place_ == Place::kRest) {
    rest += std::exchange(pending_, {});
    return false;
  }
  const size_t first = pending_.find_first_not_of(kAsciiSpace);
  if (place_ == Place::kStart) {
    if (first == std::string::npos) return false;
    const std::string_view begin = std::string_view(pending_).substr(first);
    const bool opens = begin.starts_with(kOpen);
    if (!opens && kOpen.starts_with(begin)) return false;
    if (opens) pending_.erase(0, first + kOpen.size());
    place_ = opens ? Place::kBegin : Place::kRest;
    return true;
  }
  if (place_ != Place::kReasoning) {
    if (first == std::string::npos) {
      pending_.clear();
      return false;
    }
    pending_.erase(0, first);
    place_ = place_ == Place::kBegin ? Place::kReasoning : Place::kRest;
    return true;
  }
  const size_t at = pending_.find(kEndOfReasoning);
  const bool is_found = at != std::string::npos;
  size_t end = is_found ? at : pending_.size() - begun_at_end(pending_, kEndOfReasoning);
  const size_t trimmed = size_without_space(std::string_view(pending_).substr(0, end));
  if (is_found || end - trimmed <= kMostHeldSpace) end = trimmed;
  reasoning.append(pending_, 0, end);
  pending_.erase(0, is_found ? at + kEndOfReasoning.size() : end);
  if (is_found) place_ = Place::kGap;
  return is_found;
}

void ReasoningSplitter::finish(std::string& reasoning, std::string& rest) {
  std::string& target = place_ == Place::kReasoning ? reasoning : rest;
  if (place_ == Place::kReasoning) pending_.resize(size_without_space(pending_));
  if (place_ != Place::kBegin && place_ != Place::kGap) target += pending_;
  pending_.clear();
}

AnswerParser::AnswerParser(const AnswerFormat& format) {
  if (format.splits_reasoning) reasoning_.emplace(format.begins_in_reasoning);
  if (format.tools) tools_.emplace(*format.tools, format.parameter_types);
}

void AnswerParser::push(std::string_view text, AnswerPart& out) {
  if (!reasoning_) return push_rest(text, out);
  std::string rest;
  reasoning_->push(text, out.reasoning, rest);
  push_rest(rest, out);
}

void AnswerParser::push_rest(std::string_view text, AnswerPart& out) {
  if (tools_) {
    tools_->push(text, out.content, out.calls);
  } else {
    out.content += text;
  }
}

void AnswerParser::finish(AnswerPart& out) {
  std::string rest;
  if (reasoning_) reasoning_->finish(out.reasoning, rest);
  push_rest(rest, out);
  if (tools_) tools_->finish(out.content);
}

}  // namespace millrace::text
