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

/// A regular expression of the keys that the parser reads without quotes.
inline constexpr std::string_view kBareKey = "[-A-Za-z0-9_.$@/\\u{80}-\\u{10FFFF}]+";

/// Turns arguments in a language of literals, such as Python's keyword arguments, into JSON. Emits strings as they
/// come, and other values at their end. A word that is no value of JSON becomes a string.
class LiteralArguments {
 public:
  /// Parses arguments of `tool`, whose `types` count where the dialect types strings. They may be null.
  LiteralArguments(const LiteralDialect& dialect, std::string tool, std::shared_ptr<const ParameterTypes> types);

  /// Parses one byte. The first opens the arguments.
  ArgumentState feed(char c);
  /// Returns the arguments since the last call of this function.
  [[nodiscard]] std::string take_arguments();
  /// Returns the bytes before a bad one that are not part of the arguments.
  [[nodiscard]] std::string_view unconsumed_bytes() const { return pending_; }

 private:
  enum class Phase : uint8_t {
    kStart,
    kKey,       // before the key of a member, or the end of the object
    kBareKey,   // within one without quotes
    kKeyEnd,    // after a key
    kValue,     // before a value, or the end of a list
    kWord,      // within a number or a name
    kString,    // within a string
    kQuoteEnd,  // after a mark that ends a string, unless it is a quotation mark of the text
    kPython,    // within a Python string
    kAfter,     // after a value
    kEnd,
  };
  enum class Container : uint8_t { kArguments, kObject, kList };

  ArgumentState feed_key(char c);
  ArgumentState feed_bare_key(char c);
  ArgumentState feed_value(char c);
  ArgumentState feed_word(char c);
  ArgumentState feed_string(char c);
  ArgumentState feed_quote_end(char c);
  ArgumentState feed_python_string(char c);
  ArgumentState feed_after(char c);
  /// Reads a part of a quotation mark. Returns whether the mark is complete.
  bool take_quote(char c);
  [[nodiscard]] bool may_quote(char c) const;
  void begin_string(char quote);
  void end_string();
  void escape(char c);
  void push(Container container);
  ArgumentState pop();
  /// Appends what separates a value or key from what precedes it.
  void separate();
  /// Emits a word, which is a string for sure where a quotation mark ended it.
  void end_word(bool is_string);
  void end_key();
  /// Completes the JSON where the text breaks off.
  ArgumentState fail();

  const LiteralDialect& dialect_;
  std::string tool_;
  std::shared_ptr<const ParameterTypes> types_;
  Phase phase_ = Phase::kStart;
  char close_;  // what ends the arguments, and what follows a key of theirs
  char key_end_;
  std::vector<Container> containers_;
  std::string arguments_;  // not taken yet
  std::string pending_;    // a key, a word, an escape, or what may be a quotation mark
  std::string value_;      // a quoted value that is no string, or a key
  char python_quote_ = 0;
  bool is_first_ = true;      // no member or item of the innermost container has come
  bool is_key_ = false;       // the string is a key
  bool is_buffered_ = false;  // the string's type is known at its end
  bool needs_value_ = false;  // a key has been emitted without its value
};

}  // namespace millrace::text
