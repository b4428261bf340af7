#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/tool_calls/json_arguments.h"
#include "text/tool_calls/literal_arguments.h"
#include "text/tool_calls/parameter_types.h"
#include "text/tool_calls/tagged_arguments.h"
#include "text/tool_calls/tool_formats.h"

/// Incremental parsers of tool calls in model output.
namespace millrace::text {

/// The part of one call that a piece of output adds.
struct ToolCallPart {
  uint32_t index = 0;         ///< of the call within the output
  std::string name;           ///< set in the first part of a call only
  std::string arguments;      ///< the next piece of JSON
  std::string id;             ///< that the model wrote, in the first part; empty if the format has none
  size_t content_before = 0;  ///< bytes of content that the same piece of output adds before this part
};

/// Appends parts of calls in order. Adjacent parts of one call are joined.
void append_call_part(std::vector<ToolCallPart>& parts, ToolCallPart part);

/// Separates tool calls from text in streamed output, along the rows of a format. Delays text that may still become a
/// call, and emits it as text if it does not. Drops white space between text and calls. One per choice.
class ToolCallParser {
 public:
  /// Takes the parameters' `types` for formats that write values without quotes. Null if all are strings.
  explicit ToolCallParser(ToolFormat format, std::shared_ptr<const ParameterTypes> types = nullptr);

  void push(std::string_view text, std::string& content, std::vector<ToolCallPart>& calls);
  /// Emits the delayed text at the end of the output.
  void finish(std::string& content);
  /// Returns the number of calls whose name is known.
  [[nodiscard]] uint32_t started_calls() const { return started_calls_; }
  /// Returns the number of complete calls.
  [[nodiscard]] uint32_t finished_calls() const { return finished_calls_; }

 private:
  enum class Phase : uint8_t {
    kText,       // looking for a call
    kBetween,    // before or after a call
    kObject,     // in a call that is one JSON object
    kHead,       // before the arguments of another call
    kArguments,  // in those
  };
  struct Out {
    std::string& content;
    std::vector<ToolCallPart>& calls;
  };
  enum class Match : uint8_t { kNo, kPartial, kYes };

  /// Consumes from pending_. Returns false if more input is needed.
  bool step(Out& out);
  bool step_text(Out& out);
  bool step_whole_output(Out& out);
  bool step_between(Out& out);
  bool step_object(Out& out);
  bool step_head(Out& out);
  bool step_arguments(Out& out);
  void open_section();
  void begin_call(std::string name, std::string id, Out& out);
  void end_call(bool is_closed);
  /// Emits the delayed text of an apparent call that is not one.
  void abandon_call(Out& out);
  /// Consumes an opening or closing marker, a bracket or a comma. kNo if pending_ begins with none.
  Match take_marker();
  Match take_opening();
  Match take_closing();
  /// Begins a call if pending_ does.
  Match take_call_start();
  /// Returns whether pending_ begins with `word`, whose white space at both ends does not count.
  [[nodiscard]] Match match(std::string_view word) const;
  /// Consumes `count` bytes, which become text again if no call comes.
  void hold_back(size_t count);
  /// Consumes `count` bytes after a call.
  void drop(size_t count);
  void prefer_syntax();
  [[nodiscard]] std::span<const std::string_view> also_read() const { return row_.also_read; }

  const ToolFormatRow& row_;
  std::shared_ptr<const ParameterTypes> types_;
  std::vector<std::string_view> starts_;  // markers of which one precedes every call
  const ToolCallSyntax* syntax_;          // of the current section
  Phase phase_ = Phase::kText;
  std::string pending_;
  std::string held_back_;  // of a call whose name has not come: it may turn out to be text
  std::string space_;      // after a call; text may follow it
  JsonCallParser object_;
  std::variant<JsonArguments, TaggedArguments, LiteralArguments> arguments_;
  bool is_call_open_ = false;      // a marker has opened a call, whose head is next
  bool is_section_open_ = false;   // a marker has opened the section
  bool is_list_open_ = false;      // its bracket has come
  bool has_section_call_ = false;  // the section has had a call
  bool is_text_ = false;           // a format whose calls are the whole output: the output is none
  uint32_t started_calls_ = 0;
  uint32_t finished_calls_ = 0;
};

}  // namespace millrace::text
