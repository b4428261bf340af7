#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tool_calls/xml_call_parser.h"
#include "text/tool_calls/tool_formats.h"

/// Reading calls of tools while models write them into their answers.
namespace millrace::text {

/// What a piece of an answer adds to one call.
struct ToolCallPart {
  uint32_t index = 0;     ///< of the answer's calls
  std::string name;       ///< in a call's first part, and there never empty
  std::string arguments;  ///< JSON, as the model wrote it; the next piece of it
};

/// The parts of one call are joined as long as they are neighbours.
void append_call_part(std::vector<ToolCallPart>& parts, ToolCallPart part);

/// An object {"name": "f", "arguments": {…}}, byte by byte, in whatever order its members come. Arguments are passed on
/// as they come once the name is known. Other members are passed over.
class JsonCallParser {
 public:
  enum class State : uint8_t { kOpen, kDone, kBad };

  /// Takes one byte; what it adds is appended to name() and arguments(). The first byte is the opening brace, or space.
  State feed(char c);
  [[nodiscard]] bool has_name() const { return !name_.empty(); }
  [[nodiscard]] const std::string& name() const { return name_; }
  /// Bytes before a bad one that are no part of what has been told.
  [[nodiscard]] static std::string_view unconsumed_bytes() { return {}; }
  /// What has come since the last call of this; nothing before the name.
  [[nodiscard]] std::string take_arguments();

 private:
  enum class Phase : uint8_t { kBefore, kMember, kKey, kColon, kValueStart, kValue, kEnd };
  enum class Target : uint8_t { kNone, kName, kArguments };

  /// False for arguments that have come before.
  bool begin_value(char c);
  /// True where the byte is the value's last.
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

/// Tells the calls of an answer from its text, as it comes. Nothing that may still become a call is given away, and
/// what looked like one and is none comes out as text. Space between text and call is dropped.
class ToolCallParser {
 public:
  /// `types`: of the parameters, for formats that write them without; null: all are texts.
  explicit ToolCallParser(ToolFormat format, std::shared_ptr<const ParameterTypes> types = nullptr)
      : format_(format), types_(std::move(types)), parameters_(types_.get()) {}

  void push(std::string_view text, std::string& content, std::vector<ToolCallPart>& calls);
  /// At the end of the answer.
  void finish(std::string& content);
  /// Calls whose name has come.
  [[nodiscard]] uint32_t started_calls() const { return started_calls_; }
  /// Calls that are complete.
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

  /// Consumes from pending_; false where more has to come first.
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
  /// What has been held of a call that is none.
  void abandon_call(Out& out);
  void skip_space(std::string_view also = {});
  [[nodiscard]] std::string_view opener() const;
  /// pending_ begins with `word`, and it is consumed; nothing where that cannot be said yet.
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
