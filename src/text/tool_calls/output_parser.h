#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tool_calls/tool_calls.h"

namespace millrace::text {

/// How to split an output into reasoning, content and tool calls.
struct OutputFormat {
  bool splits_reasoning = false;     ///< <think>…</think> comes before the content
  bool begins_in_reasoning = false;  ///< the prompt has opened it
  bool reasoning_is_closed = false;  ///< the prompt has closed it, or ends within content
  std::optional<ToolFormat> tools;
  std::shared_ptr<const ParameterTypes> parameter_types;  ///< of the tools; null if all are strings
  /// The beginning of a call that ends the prompt. It is parsed as if the model had written it.
  std::string prefix;
  [[nodiscard]] bool is_plain() const { return !splits_reasoning && !tools; }
};

/// Returns whether a rendered prompt has opened the reasoning of the output.
[[nodiscard]] bool prompt_opens_reasoning(std::string_view prompt);
/// Returns whether a rendered prompt has closed the reasoning of the output.
[[nodiscard]] bool prompt_closes_reasoning(std::string_view prompt);
/// Returns whether an output so far has not reached the end of its reasoning.
[[nodiscard]] bool is_within_reasoning(std::string_view begun_answer);
/// Returns whether the source of a chat template mentions <think>.
[[nodiscard]] bool template_has_reasoning(std::string_view source);
inline constexpr std::string_view kReasoningStart = "<think>";
inline constexpr std::string_view kReasoningEnd = "</think>";

/// Splits streamed output into leading reasoning and the rest. Drops white space around both.
class ReasoningParser {
 public:
  explicit ReasoningParser(bool begins_in_reasoning)
      : phase_(begins_in_reasoning ? Phase::kBegin : Phase::kStart), has_opened_(begins_in_reasoning) {}

  void push(std::string_view text, std::string& reasoning, std::string& rest);
  void finish(std::string& reasoning, std::string& rest);
  [[nodiscard]] bool in_reasoning() const { return phase_ == Phase::kBegin || phase_ == Phase::kReasoning; }
  [[nodiscard]] bool has_opened() const { return has_opened_; }

 private:
  enum class Phase : uint8_t { kStart, kBegin, kReasoning, kGap, kRest };
  bool step(std::string& reasoning, std::string& rest);

  Phase phase_;
  bool has_opened_;
  std::string pending_;
};

/// The new reasoning, content and calls that a piece of output adds.
struct OutputPart {
  std::string content;
  /// Whether </think> came without <think>, so that all earlier content is reasoning.
  bool content_was_reasoning = false;
  std::string reasoning;
  std::vector<ToolCallPart> calls;
};

/// Splits streamed output into reasoning, content and tool calls. One per choice, used by one thread at a time.
class OutputParser {
 public:
  explicit OutputParser(const OutputFormat& format);

  void push(std::string_view text, OutputPart& out);
  /// Returns the delayed parts at the end of the output.
  void finish(OutputPart& out);
  [[nodiscard]] bool in_reasoning() const { return reasoning_ && reasoning_->in_reasoning(); }
  [[nodiscard]] uint32_t calls_started() const { return tools_ ? tools_->started_calls() : 0; }
  [[nodiscard]] uint32_t calls_finished() const { return tools_ ? tools_->finished_calls() : 0; }

 private:
  void push_rest(std::string_view text, OutputPart& out);
  /// Parses output without <think>, in which </think> may still come.
  void push_unopened(std::string_view text, OutputPart& out);
  /// Treats the text before a </think> as reasoning. Returns false if it has calls.
  bool end_unopened(std::string_view before, OutputPart& out);
  void make_tool_parser();

  OutputFormat format_;
  std::optional<ReasoningParser> reasoning_;
  std::optional<ToolCallParser> tools_;
  bool may_lack_start_;
  bool skips_space_ = false;  // behind a </think> without a <think>
  std::string pending_;       // what may be the beginning of a tag
};

}  // namespace millrace::text
