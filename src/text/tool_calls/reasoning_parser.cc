#include "text/tool_calls/reasoning_parser.h"

#include <algorithm>
#include <utility>

#include "text/tool_calls/partial_match.h"

namespace millrace::text {

ReasoningParser::ReasoningParser(const ReasoningRow& row, bool begins_in_reasoning, std::string_view early_end)
    : start_(without_space(row.start)),
      end_(row.end),
      early_end_(without_space(early_end)),
      phase_(begins_in_reasoning ? Phase::kBegin : Phase::kStart),
      has_opened_(begins_in_reasoning) {}

void ReasoningParser::push(std::string_view text, std::string& reasoning, std::string& rest) {
  pending_ += text;
  while (!pending_.empty() && step(reasoning, rest)) {
  }
}

/// Consumes from pending_. Returns false if more input is needed.
bool ReasoningParser::step(std::string& reasoning, std::string& rest) {
  if (phase_ == Phase::kRest) {
    rest += std::exchange(pending_, {});
    return false;
  }
  if (phase_ == Phase::kReasoning) return step_reasoning(reasoning);
  const size_t first = pending_.find_first_not_of(kAsciiSpace);
  if (phase_ == Phase::kStart) {
    if (first == std::string::npos) return false;
    const std::string_view begin = std::string_view(pending_).substr(first);
    const bool opens = begin.starts_with(start_);
    if (!opens && start_.starts_with(begin)) return false;
    if (opens) pending_.erase(0, first + start_.size());
    phase_ = opens ? Phase::kBegin : Phase::kRest;
    has_opened_ = opens;
    return true;
  }
  if (first == std::string::npos) {
    pending_.clear();
    return false;
  }
  pending_.erase(0, first);
  phase_ = phase_ == Phase::kBegin ? Phase::kReasoning : Phase::kRest;
  return true;
}

bool ReasoningParser::step_reasoning(std::string& reasoning) {
  const size_t early = early_end_.empty() ? std::string::npos : pending_.find(early_end_);
  const size_t at = std::min(pending_.find(end_), early);
  const bool is_found = at != std::string::npos;
  size_t partial = partial_match_length(pending_, end_);
  if (!early_end_.empty()) partial = std::max(partial, partial_match_length(pending_, early_end_));
  const size_t end = is_found ? at : pending_.size() - partial;
  // Longer white space is shown, whichever pieces it comes in.
  const size_t trimmed = size_without_space(std::string_view(pending_).substr(0, end));
  const size_t shown = end - ((end - trimmed) % (kMaxHeldBackSpace + 1));
  reasoning.append(pending_, 0, shown);
  pending_.erase(0, is_found ? at + (at == early ? 0 : end_.size()) : shown);
  if (is_found) phase_ = Phase::kGap;
  return is_found;
}

void ReasoningParser::finish(std::string& reasoning, std::string& rest) {
  std::string& target = phase_ == Phase::kReasoning ? reasoning : rest;
  if (phase_ == Phase::kReasoning) pending_.resize(size_without_space(pending_));
  if (phase_ != Phase::kBegin && phase_ != Phase::kGap) target += pending_;
  pending_.clear();
}

std::string TagFilter::push(std::string_view text) {
  if (tags_.empty()) return std::string(text);
  pending_ += text;
  std::string out;
  while (true) {
    size_t at = std::string::npos;
    size_t length = 0;
    size_t partial = 0;
    for (const std::string_view tag : tags_) {
      const size_t found = pending_.find(tag);
      if (found < at) length = tag.size();
      at = std::min(at, found);
      partial = std::max(partial, partial_match_length(pending_, tag));
    }
    const bool is_found = at != std::string::npos;
    const size_t shown = is_found ? at : pending_.size() - partial;
    out.append(pending_, 0, shown);
    pending_.erase(0, is_found ? at + length : shown);
    if (!is_found) return out;
  }
}

std::string TagFilter::finish() {
  return std::exchange(pending_, {});
}

}  // namespace millrace::text
