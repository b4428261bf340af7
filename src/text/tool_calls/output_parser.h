#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tool_calls/tool_calls.h"

namespace millrace::text {

/// How an answer is to be taken apart.
struct OutputFormat {
  bool splits_reasoning = false;     ///< <think>…</think> before the answer
  bool begins_in_reasoning = false;  ///< the prompt has opened it
  std::optional<ToolFormat> tools;
  std::shared_ptr<const ParameterTypes> parameter_types;  ///< of the tools; null: all are texts
  /// The prompt ends with it: the beginning of a call. Parsed as if the model had written it.
  std::string prefix;
  [[nodiscard]] bool is_plain() const { return !splits_reasoning && !tools; }
};

/// Whether a prompt that ends a chat template's way has opened the reasoning of the answer.
[[nodiscard]] bool prompt_opens_reasoning(std::string_view prompt);
/// Whether the beginning of an answer has not come to the end of its reasoning.
[[nodiscard]] bool is_within_reasoning(std::string_view begun_answer);
/// Whether the source of a chat template knows of <think>.
[[nodiscard]] bool template_has_reasoning(std::string_view source);
inline constexpr std::string_view kReasoningStart = "<think>";
inline constexpr std::string_view kReasoningEnd = "</think>";

/// Tells the reasoning that an answer begins with from the rest, as it comes. Space around either is dropped.
class ReasoningParser {
 public:
  explicit ReasoningParser(bool begins_in_reasoning) : phase_(begins_in_reasoning ? Phase::kBegin : Phase::kStart) {}

  void push(std::string_view text, std::string& reasoning, std::string& rest);
  void finish(std::string& reasoning, std::string& rest);
  [[nodiscard]] bool in_reasoning() const { return phase_ == Phase::kBegin || phase_ == Phase::kReasoning; }

 private:
  enum class Phase : uint8_t { kStart, kBegin, kReasoning, kGap, kRest };
  bool step(std::string& reasoning, std::string& rest);

  Phase phase_;
  std::string pending_;
};

/// What a piece of an answer adds to it.
struct OutputPart {
  std::string content;
  std::string reasoning;
  std::vector<ToolCallPart> calls;
};

/// Takes an answer apart into reasoning, content and calls of tools while it is written. One per choice.
class OutputParser {
 public:
  explicit OutputParser(const OutputFormat& format);

  void push(std::string_view text, OutputPart& out);
  /// At the end of the answer: what was held back.
  void finish(OutputPart& out);
  [[nodiscard]] bool in_reasoning() const { return reasoning_ && reasoning_->in_reasoning(); }
  [[nodiscard]] uint32_t calls_started() const { return tools_ ? tools_->started_calls() : 0; }
  [[nodiscard]] uint32_t calls_finished() const { return tools_ ? tools_->finished_calls() : 0; }

 private:
  void push_rest(std::string_view text, OutputPart& out);

  std::optional<ReasoningParser> reasoning_;
  std::optional<ToolCallParser> tools_;
};

}  // namespace millrace::text
