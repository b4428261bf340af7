#include "text/tool_calls/output_parser.h"

#include <algorithm>
#include <utility>

#include "text/tool_calls/partial_match.h"

namespace millrace::text {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";

bool is_harmony(const OutputFormat& format) {
  return format.tools == ToolFormat::kHarmony || (!format.tools && format.reasoning == ReasoningFormat::kHarmony);
}

std::span<const std::string_view> content_tags(const OutputFormat& format) {
  return format.reasoning ? row_of(*format.reasoning).content_tags : std::span<const std::string_view>();
}

/// Returns whether calls at the end of reasoning are to be found. The others are no calls, or end the reasoning.
bool may_call_in_reasoning(const OutputFormat& format) {
  return format.tools && !format.has_constrained_calls && !row_of(*format.tools).ends_reasoning &&
         !tool_call_start_tag(*format.tools).empty();
}

}  // namespace

std::string_view early_end_of_reasoning(const OutputFormat& format) {
  if (!format.tools || !row_of(*format.tools).ends_reasoning) return {};
  return row_of(*format.tools).written.front().section_open;
}

OutputParser::OutputParser(const OutputFormat& format)
    : format_(format),
      filter_(content_tags(format)),
      may_lack_start_(format.reasoning && row_of(*format.reasoning).may_lack_start && !format.begins_in_reasoning &&
                      !format.reasoning_is_closed) {
  if (format.response_template) {
    template_.emplace(format.response_template, format.prompt_end, format.parameter_types);
  } else if (is_harmony(format)) {
    harmony_.emplace();
  } else if (format.reasoning && *format.reasoning != ReasoningFormat::kHarmony) {
    reasoning_.emplace(row_of(*format.reasoning), format.begins_in_reasoning, early_end_of_reasoning(format));
    if (may_call_in_reasoning(format)) late_calls_.emplace(*format.tools, format.parameter_types);
  }
  make_tool_parser();
}

void OutputParser::make_tool_parser() {
  if (format_.tools && !harmony_ && !template_) tools_.emplace(*format_.tools, format_.parameter_types);
}

bool OutputParser::in_reasoning() const {
  if (harmony_) return harmony_->in_reasoning();
  if (template_) return template_->in_reasoning();
  return reasoning_ && reasoning_->in_reasoning();
}

uint32_t OutputParser::calls_started() const {
  if (harmony_) return harmony_->started_calls();
  if (template_) return template_->finished_calls();
  return (tools_ ? tools_->started_calls() : 0) + (late_calls_ ? late_calls_->found_calls() : 0);
}

uint32_t OutputParser::calls_finished() const {
  if (harmony_) return harmony_->finished_calls();
  if (template_) return template_->finished_calls();
  return (tools_ ? tools_->finished_calls() : 0) + (late_calls_ ? late_calls_->found_calls() : 0);
}

std::string& OutputParser::reasoning_of(OutputPart& out) const {
  return format_.reasoning ? out.reasoning : out.content;
}

void OutputParser::push(std::string_view text, OutputPart& out) {
  if (harmony_) return harmony_->push(text, {reasoning_of(out), out.content, out.calls});
  if (template_) return template_->push(text, {reasoning_of(out), out.content, out.calls});
  if (!reasoning_) return push_rest(text, out);
  std::string thought;
  std::string rest;
  reasoning_->push(text, thought, rest);
  push_reasoning(thought, !rest.empty(), out);
  push_unopened(rest, out);
}

void OutputParser::push_reasoning(std::string_view thought, bool is_over, OutputPart& out) {
  if (!late_calls_) {
    out.reasoning += thought;
    return;
  }
  late_calls_->push(thought, out.reasoning);
  if (!is_over) return;
  late_calls_->release(out.reasoning);
  late_calls_.reset();
}

void OutputParser::push_unopened(std::string_view text, OutputPart& out) {
  if (skips_space_) {
    text.remove_prefix(std::min(text.find_first_not_of(kAsciiSpace), text.size()));
    skips_space_ = text.empty();
  }
  if (!may_lack_start_ || reasoning_->has_opened()) return push_rest(text, out);
  pending_ += text;
  const size_t end = pending_.find(kClose);
  const bool is_ended = end != std::string::npos && pending_.find(kOpen) > end;
  if (is_ended) {
    may_lack_start_ = false;
    const std::string all = std::exchange(pending_, {});
    skips_space_ = end_unopened(std::string_view(all).substr(0, end), out);
    return push_unopened(std::string_view(all).substr(end + (skips_space_ ? kClose.size() : 0)), out);
  }
  may_lack_start_ = pending_.find(kOpen) == std::string::npos;
  const size_t held =
      may_lack_start_ ? std::max(partial_match_length(pending_, kClose), partial_match_length(pending_, kOpen)) : 0;
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
  push_tools(filter_.push(text), out);
}

void OutputParser::push_tools(std::string_view text, OutputPart& out) {
  if (tools_) {
    tools_->push(text, out.content, out.calls);
  } else {
    out.content += text;
  }
}

void OutputParser::finish(OutputPart& out) {
  if (harmony_) return harmony_->finish({reasoning_of(out), out.content, out.calls});
  if (template_) return template_->finish({reasoning_of(out), out.content, out.calls});
  std::string rest;
  if (reasoning_) {
    std::string thought;
    reasoning_->finish(thought, rest);
    push_reasoning(thought, !rest.empty(), out);
    if (late_calls_) late_calls_->finish(out.reasoning, out.calls);
    push_unopened(rest, out);
    rest = std::exchange(pending_, {});
  }
  push_rest(rest, out);
  push_tools(filter_.finish(), out);
  if (tools_) tools_->finish(out.content);
}

}  // namespace millrace::text
