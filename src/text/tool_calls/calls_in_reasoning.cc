#include "text/tool_calls/calls_in_reasoning.h"

#include <utility>

#include "text/tool_calls/partial_match.h"

namespace millrace::text {

CallsInReasoning::CallsInReasoning(ToolFormat format, std::shared_ptr<const ParameterTypes> types)
    : format_(format), types_(std::move(types)), start_(tool_call_start_tag(format)) {}

void CallsInReasoning::push(std::string_view piece, std::string& reasoning) {
  held_ += piece;
  while (attempt_ || find_start(reasoning)) {
    // Byte by byte, so that an attempt fails at the same byte whichever pieces come.
    while (attempted_ < held_.size() && without_space(content_).empty()) {
      attempt_->push(std::string_view(held_).substr(attempted_++, 1), content_, calls_);
    }
    if (without_space(content_).empty()) return;
    give_up(reasoning);
  }
}

bool CallsInReasoning::find_start(std::string& reasoning) {
  const size_t at = held_.find(start_);
  const bool is_found = at != std::string::npos;
  const size_t end = is_found ? at : held_.size() - partial_match_length(held_, start_);
  const size_t shown = size_without_space(std::string_view(held_).substr(0, end));
  reasoning.append(held_, 0, shown);
  held_.erase(0, shown);
  if (is_found) attempt_.emplace(format_, types_);
  return is_found;
}

void CallsInReasoning::give_up(std::string& reasoning) {
  const std::string_view read = std::string_view(held_).substr(0, attempted_);
  const size_t end = size_without_space(read.substr(0, read.size() - partial_match_length(read, start_)));
  reasoning.append(held_, 0, end);
  held_.erase(0, end);
  attempt_.reset();
  attempted_ = 0;
  content_.clear();
  calls_.clear();
}

void CallsInReasoning::release(std::string& reasoning) {
  reasoning += std::exchange(held_, {});
  attempt_.reset();
}

bool CallsInReasoning::ends_with_calls() {
  if (!attempt_ || attempt_->started_calls() == 0) return false;
  attempt_->finish(content_);
  return attempt_->finished_calls() == attempt_->started_calls() && without_space(content_).empty();
}

void CallsInReasoning::finish(std::string& reasoning, std::vector<ToolCallPart>& calls) {
  if (!ends_with_calls()) return release(reasoning);
  found_calls_ = attempt_->finished_calls();
  for (ToolCallPart& call : calls_) {
    call.content_before = 0;
    calls.push_back(std::move(call));
  }
  calls_.clear();
  held_.clear();
  attempt_.reset();
}

}  // namespace millrace::text
