#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include "grammar/expression.h"
#include "grammar/text_language.h"

namespace millrace::grammar {

/// The parts of JSON (RFC 8259) as rules of one Definition, made on first use. White space between tokens is one blank,
/// or a line feed with bounded indentation, so that a model cannot write space for ever. Numbers have bounded digits.
/// Lives while one schema is read.
class JsonRules {
 public:
  explicit JsonRules(Definition& definition) : definition_(definition) {}

  [[nodiscard]] ExpressionPtr space();
  [[nodiscard]] ExpressionPtr value();
  [[nodiscard]] ExpressionPtr object();
  [[nodiscard]] ExpressionPtr array();
  [[nodiscard]] ExpressionPtr string();
  [[nodiscard]] ExpressionPtr number();
  [[nodiscard]] ExpressionPtr integer();
  /// Returns a string of `min` to `max` characters.
  [[nodiscard]] ExpressionPtr string_of(uint32_t min, std::optional<uint32_t> max);
  /// Returns a string whose characters are a text of the language.
  [[nodiscard]] ExpressionPtr string_of(const TextLanguage& language);
  /// Returns a string whose characters match an expression over characters.
  [[nodiscard]] ExpressionPtr string_of(const Expression& expression);
  /// Returns a string whose characters are a text of another definition, whose rules are copied.
  [[nodiscard]] ExpressionPtr string_of(const Definition& source);

  /// Returns `min` to `max` repeats. Large counts are written as blocks, which take fewer states.
  [[nodiscard]] ExpressionPtr repeated(const ExpressionPtr& part, uint32_t min, std::optional<uint32_t> max);

  [[nodiscard]] static ExpressionPtr quoted(std::string_view text);

 private:
  /// Returns a character of the set in a JSON string. If the set is not everything, it is written as it is, or with
  /// its shortest escape.
  [[nodiscard]] ExpressionPtr string_char(const CharSet& chars);
  [[nodiscard]] ExpressionPtr any_char();
  [[nodiscard]] ExpressionPtr with_string_chars(const Expression& expression);
  /// Returns the rule of this name. `make` makes it on first use.
  template <class Make>
  ExpressionPtr rule(std::optional<RuleIndex>& index, std::string_view name, const Make& make);

  Definition& definition_;
  RuleIndex first_copy_ = 0;  // of the rules of the other definition
  std::optional<RuleIndex> space_, value_, object_, array_, string_, number_, integer_, escape_;
  std::map<uint64_t, ExpressionPtr> escapes_;  // by the characters that have to be escaped, one bit each
};

}  // namespace millrace::grammar
