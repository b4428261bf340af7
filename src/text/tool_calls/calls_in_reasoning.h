#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tool_calls/tool_calls.h"

namespace millrace::text {

/// Finds the calls with which an output ends although its reasoning has not been ended: models forget the end tag
/// before a call. Calls that anything but white space and the end tag follows are reasoning. Delays such text until it
/// is known. One per choice, used by one thread at a time.
class CallsInReasoning {
 public:
  CallsInReasoning(ToolFormat format, std::shared_ptr<const ParameterTypes> types);

  /// Takes the next piece of reasoning. Appends to `reasoning` what cannot be a call at the end.
  void push(std::string_view piece, std::string& reasoning);
  /// Appends the delayed text to `reasoning`, since content follows.
  void release(std::string& reasoning);
  /// Emits the delayed text at the end of the output: as calls, or as reasoning.
  void finish(std::string& reasoning, std::vector<ToolCallPart>& calls);
  /// Returns the number of calls that finish() has found.
  [[nodiscard]] uint32_t found_calls() const { return found_calls_; }

 private:
  /// Moves what comes before a start tag to `reasoning`. Returns false if there is none.
  bool find_start(std::string& reasoning);
  /// Moves the text of an attempt that failed to `reasoning`.
  void give_up(std::string& reasoning);
  [[nodiscard]] bool ends_with_calls();

  ToolFormat format_;
  std::shared_ptr<const ParameterTypes> types_;
  std::string_view start_;
  std::string held_;  // of an attempt; or space, and what may begin a start tag
  std::optional<ToolCallParser> attempt_;
  size_t attempted_ = 0;  // bytes of held_ that the attempt has read
  std::string content_;   // that the attempt has found
  std::vector<ToolCallPart> calls_;
  uint32_t found_calls_ = 0;
};

}  // namespace millrace::text
