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
  bool reasoning_is_closed = false;  ///< the prompt has closed it, or ends within an answer
  std::optional<ToolFormat> tools;
  std::shared_ptr<const ParameterTypes> parameter_types;  ///< of the tools; null: all are texts
  /// The prompt ends with it: the beginning of a call. Parsed as if the model had written it.
  std::string prefix;
  [[nodiscard]] bool is_plain() const { return !splits_reasoning && !tools; }
};

/// Whether a prompt that ends a chat template's way has opened the reasoning of the answer.
[[nodiscard]] bool prompt_opens_reasoning(std::string_view prompt);
/// Whether such a prompt has closed it.
[[nodiscard]] bool prompt_closes_reasoning(std::string_view prompt);
/// Whether the beginning of an answer has not come to the end of its reasoning.
[[nodiscard]] bool is_within_reasoning(std::string_view begun_answer);
/// Whether the source of a chat template knows of <think>.
[[nodiscard]] bool template_has_reasoning(std::string_view source);
inline constexpr std::string_view kReasoningStart = "<think>";
inline constexpr std::string_view kReasoningEnd = "</think>";

/// Tells the reasoning that an answer begins with from the rest, as it comes. Space around either is dropped.
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

/// What a piece of an answer adds to it.
struct OutputPart {
  std::string content;
  /// Reasoning has ended that no <think> began: the content of all earlier parts is its beginning.
  bool content_was_reasoning = false;
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
  /// Takes text of an answer without <think>, in which </think> may still come.
  void push_unopened(std::string_view text, OutputPart& out);
  /// Takes the text before a </think> for reasoning. Returns false where it holds calls.
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
