#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tool_calls/tool_calls.h"

namespace millrace::text {

/// Reads outputs of gpt-oss, which are messages with a header each:
///   <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.f
///   <|message|>{…}<|call|>
/// A message to a function is a call, one of the channel "analysis" is reasoning, and any other is content.
class HarmonyParser {
 public:
  struct Out {
    std::string& reasoning;
    std::string& content;
    std::vector<ToolCallPart>& calls;
  };

  void push(std::string_view text, Out out);
  /// Emits the delayed text at the end of the output.
  void finish(Out out);
  [[nodiscard]] bool in_reasoning() const { return kind_ == Kind::kReasoning; }
  [[nodiscard]] uint32_t started_calls() const { return started_calls_; }
  [[nodiscard]] uint32_t finished_calls() const { return finished_calls_; }

 private:
  enum class Kind : uint8_t { kHeader, kReasoning, kContent, kCall };

  bool step(Out& out);
  bool step_header(Out& out);
  bool step_body(Out& out);
  void begin_message(std::string_view header, Out& out);
  void append_body(std::string_view text, Out& out);
  void end_message(Out& out);

  Kind kind_ = Kind::kHeader;
  std::string pending_;
  bool has_body_ = false;       // the message has had text
  bool has_reasoning_ = false;  // an earlier message has
  bool has_content_ = false;
  uint32_t started_calls_ = 0;
  uint32_t finished_calls_ = 0;
};

}  // namespace millrace::text
