#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tool_calls/json_arguments.h"
#include "text/tool_calls/parameter_types.h"
#include "text/tool_calls/tool_formats.h"

namespace millrace::text {

/// Turns arguments that are written parameter by parameter, strings without quotes, into JSON. Emits strings as they
/// come, and other values at their end.
class TaggedArguments {
 public:
  /// Parses arguments of `tool`. Parameters are strings if `types` is null.
  TaggedArguments(const ToolCallSyntax& syntax, std::string tool, std::shared_ptr<const ParameterTypes> types);

  /// Parses one byte, up to what ends the call.
  ArgumentState feed(char c);
  /// Returns the arguments since the last call of this function.
  [[nodiscard]] std::string take_arguments();
  /// Returns the bytes before a bad one that are not part of the arguments.
  [[nodiscard]] std::string_view unconsumed_bytes() const { return pending_; }
  /// Returns whether the call ended with the format's call_close.
  [[nodiscard]] bool has_closed_call() const { return has_closed_call_; }

 private:
  enum class Phase : uint8_t { kBetween, kKey, kValueOpen, kAttributes, kValue, kEnd };

  ArgumentState feed_word(char c);
  ArgumentState feed_key(char c);
  ArgumentState feed_value_open(char c);
  ArgumentState feed_value(char c);
  void begin_value();
  /// Emits the text of pending_ that cannot be part of the value's end.
  void stream_text();
  /// Ends a value at `tag`, which is another tag of the format where the value's own end is missing.
  ArgumentState end_value(std::string_view tag);
  ArgumentState end(ArgumentState state);

  const ParameterTags& tags_;
  std::string tool_;
  std::shared_ptr<const ParameterTypes> types_;
  // The words of the format without white space around them.
  std::string_view open_;
  std::string_view value_open_;
  std::string_view arguments_end_;
  std::string_view call_close_;
  const std::vector<std::string_view> value_ends_;
  std::string framed_end_;  // a value's own end with the line feed before it
  Phase phase_ = Phase::kBetween;
  std::string pending_;
  std::string key_;
  std::string arguments_;  // not taken yet
  ValueTypes value_types_;
  bool is_streamed_ = false;      // the value is a string, whatever follows
  bool drops_line_feed_ = false;  // the value's first line feed is markup
  bool has_arguments_ = false;
  bool has_closed_call_ = false;
};

}  // namespace millrace::text
