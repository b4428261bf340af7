#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tool_calls/calls_in_reasoning.h"
#include "text/tool_calls/harmony_parser.h"
#include "text/tool_calls/output_format.h"
#include "text/tool_calls/reasoning_parser.h"
#include "text/tool_calls/response_template.h"
#include "text/tool_calls/tool_calls.h"

namespace millrace::text {

/// The new reasoning, content and calls that a piece of output adds.
struct OutputPart {
  std::string content;
  /// Says whether </think> came without <think>, so that all earlier content is reasoning.
  bool content_was_reasoning = false;
  std::string reasoning;
  std::vector<ToolCallPart> calls;
};

/// Returns the marker of calls that ends reasoning in a format, or nothing.
[[nodiscard]] std::string_view early_end_of_reasoning(const OutputFormat& format);

/// Splits streamed output into reasoning, content and tool calls. One per choice, used by one thread at a time.
class OutputParser {
 public:
  explicit OutputParser(const OutputFormat& format);

  void push(std::string_view text, OutputPart& out);
  /// Returns the delayed parts at the end of the output.
  void finish(OutputPart& out);
  [[nodiscard]] bool in_reasoning() const;
  [[nodiscard]] uint32_t calls_started() const;
  [[nodiscard]] uint32_t calls_finished() const;

 private:
  /// Returns where the reasoning of harmony and of response templates goes.
  [[nodiscard]] std::string& reasoning_of(OutputPart& out) const;
  /// Passes `thought` on, and the reasoning that was delayed if other text follows it.
  void push_reasoning(std::string_view thought, bool is_over, OutputPart& out);
  void push_rest(std::string_view text, OutputPart& out);
  void push_tools(std::string_view text, OutputPart& out);
  /// Parses output without <think>, in which </think> may still come.
  void push_unopened(std::string_view text, OutputPart& out);
  /// Treats the text before a </think> as reasoning. Returns false if it has calls.
  bool end_unopened(std::string_view before, OutputPart& out);
  void make_tool_parser();

  OutputFormat format_;
  std::optional<HarmonyParser> harmony_;
  std::optional<ResponseTemplateParser> template_;
  std::optional<ReasoningParser> reasoning_;
  std::optional<CallsInReasoning> late_calls_;  // until content comes
  TagFilter filter_;
  std::optional<ToolCallParser> tools_;
  bool may_lack_start_;
  bool skips_space_ = false;  // after a </think> without a <think>
  std::string pending_;       // what may be the beginning of a tag
};

}  // namespace millrace::text
