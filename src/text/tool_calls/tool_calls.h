#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tool_calls/xml_call_parser.h"
#include "text/tool_calls/tool_formats.h"

/// Incremental parsers of tool calls in model output.
namespace millrace::text {

/// The part of one call that a piece of output adds.
struct ToolCallPart {
  uint32_t index = 0;     ///< of the call within the output
  std::string name;       ///< set in the first part of a call only
  std::string arguments;  ///< the next piece of JSON, as the model wrote it
};

/// Parts of calls in order. Adjacent parts of one call are joined.
void append_call_part(std::vector<ToolCallPart>& parts, ToolCallPart part);

/// Parses an object {"name": "f", "arguments": {…}} byte by byte, with members in any order. Emits arguments as they
/// come once the name is known. Ignores other members.
class JsonCallParser {
 public:
  enum class State : uint8_t { kOpen, kDone, kBad };

  /// Parses one byte and appends to name() and arguments(). The first byte is the opening brace or white space.
  State feed(char c);
  [[nodiscard]] bool has_name() const { return !name_.empty(); }
  [[nodiscard]] const std::string& name() const { return name_; }
  /// Returns how many bytes before a bad one have not been emitted.
  [[nodiscard]] static std::string_view unconsumed_bytes() { return {}; }
  /// Returns the arguments since the last call of this function. Empty until the name is known.
  [[nodiscard]] std::string take_arguments();

 private:
  enum class Phase : uint8_t { kBefore, kMember, kKey, kColon, kValueStart, kValue, kEnd };
  enum class Target : uint8_t { kNone, kName, kArguments };

  /// Returns false for a second arguments member.
  bool begin_value(char c);
  /// Returns whether the byte ends the value.
  bool in_value(char c);
  bool end_value();

  Phase phase_ = Phase::kBefore;
  Target target_ = Target::kNone;
  std::string key_;
  std::string value_;  // of the name, and of arguments that are a string: raw
  std::string name_;
  std::string arguments_;  // not taken yet
  size_t depth_ = 0;
  bool is_scalar_ = false;
  bool is_string_ = false;
  bool in_string_ = false;
  bool escaped_ = false;
  bool saw_arguments_ = false;
};

/// Separates tool calls from text in streamed output. Delays text that may still become a call, and emits it as text if
/// it does not. Drops white space between text and calls. One per choice.
class ToolCallParser {
 public:
  /// Takes the parameters' `types` for formats that write values without quotes. Null if all are strings.
  explicit ToolCallParser(ToolFormat format, std::shared_ptr<const ParameterTypes> types = nullptr)
      : format_(format), types_(std::move(types)), parameters_(types_.get()) {}

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
    kFirst,      // of Mistral: behind what opens the calls
    kCall,       // in one of the form {"name": …}, or with parameters
    kBetween,    // behind a call, or before the first of several
    kHead,       // before the arguments of a call without such an object
    kArguments,  // of one
    kTail,       // behind those
  };
  struct Out {
    std::string& content;
    std::vector<ToolCallPart>& calls;
  };

  /// Consumes from pending_. Returns false if more input is needed.
  bool step(Out& out);
  bool step_text(Out& out);
  bool step_start_of_json(Out& out);
  template <class Call>
  bool step_call(Call& call, Out& out);
  bool step_between(Out& out);
  bool step_word(std::string_view word, Phase next, Out& out);
  bool step_first();
  bool step_head(Out& out);
  bool step_arguments(Out& out);
  bool step_tail();
  void open(Phase phase);
  void begin_call(std::string name, Out& out);
  void end_call(Phase next);
  /// Returns the delayed text of an apparent call that is not one.
  void abandon_call(Out& out);
  void skip_space(std::string_view also = {});
  [[nodiscard]] std::string_view opener() const;
  /// Consumes `word` from the start of pending_. Returns whether it was there, or nothing if more input is needed.
  [[nodiscard]] std::optional<bool> take_word(std::string_view word);

  ToolFormat format_;
  std::shared_ptr<const ParameterTypes> types_;
  Phase phase_ = Phase::kText;
  std::string pending_;
  std::string held_back_;  // of a call whose name has not come: it may turn out to be text
  JsonCallParser object_;
  XmlCallParser parameters_;
  size_t depth_ = 0;  // in arguments
  bool in_string_ = false;
  bool escaped_ = false;
  bool is_text_ = false;  // llama3_json: the answer is no call
  uint32_t started_calls_ = 0;
  uint32_t finished_calls_ = 0;
};

}  // namespace millrace::text
