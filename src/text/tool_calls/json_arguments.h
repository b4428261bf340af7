#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// Incremental parsers of arguments that are JSON.
namespace millrace::text {

/// What a parser of one call says of the byte that it has got.
enum class ArgumentState : uint8_t {
  kOpen,  ///< more bytes follow
  kDone,  ///< the byte was the last one
  kBad,   ///< the byte does not belong to the call
};

/// Passes on a JSON object as the model wrote it, or the text of a JSON string that holds one. A "<" that no JSON has
/// ends an object, whose missing brackets are added.
class JsonArguments {
 public:
  /// Parses one byte. The first is the opening brace, or the quotation mark of a string.
  ArgumentState feed(char c);
  /// Returns the arguments since the last call of this function.
  [[nodiscard]] std::string take_arguments();
  [[nodiscard]] static std::string_view unconsumed_bytes() { return {}; }

 private:
  std::string arguments_;
  std::string closers_;  // the brackets that the open ones want, the outermost first
  bool is_encoded_ = false;
  bool in_string_ = false;
  bool escaped_ = false;
};

/// Parses an object {"name": "f", "arguments": {…}} byte by byte, with members in any order. Emits arguments as they
/// come once the name is known. Ignores other members.
class JsonCallParser {
 public:
  /// Parses one byte and appends to name() and arguments(). The first byte is the opening brace or white space.
  ArgumentState feed(char c);
  [[nodiscard]] bool has_name() const { return !name_.empty(); }
  [[nodiscard]] const std::string& name() const { return name_; }
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
  std::string closers_;    // the brackets that the value's open ones want, the outermost first
  bool is_scalar_ = false;
  bool is_string_ = false;
  bool in_string_ = false;
  bool escaped_ = false;
  bool saw_arguments_ = false;
};

}  // namespace millrace::text
