#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "text/tool_calls/reasoning_formats.h"

namespace millrace::text {

/// Splits streamed output into leading reasoning and the rest. Drops white space around both.
class ReasoningParser {
 public:
  /// The text `early_end`, unless empty, also ends the reasoning, and is not part of it.
  ReasoningParser(const ReasoningRow& row, bool begins_in_reasoning, std::string_view early_end);

  void push(std::string_view text, std::string& reasoning, std::string& rest);
  void finish(std::string& reasoning, std::string& rest);
  [[nodiscard]] bool in_reasoning() const { return phase_ == Phase::kBegin || phase_ == Phase::kReasoning; }
  [[nodiscard]] bool has_opened() const { return has_opened_; }

 private:
  enum class Phase : uint8_t { kStart, kBegin, kReasoning, kGap, kRest };
  bool step(std::string& reasoning, std::string& rest);
  bool step_reasoning(std::string& reasoning);

  std::string_view start_;
  std::string_view end_;
  std::string_view early_end_;
  Phase phase_;
  bool has_opened_;
  std::string pending_;
};

/// Removes words from streamed text.
class TagFilter {
 public:
  explicit TagFilter(std::span<const std::string_view> tags) : tags_(tags) {}

  /// Returns what is known of the text without the tags.
  [[nodiscard]] std::string push(std::string_view text);
  /// Returns the delayed text at the end.
  [[nodiscard]] std::string finish();

 private:
  std::span<const std::string_view> tags_;
  std::string pending_;
};

}  // namespace millrace::text
