#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "grammar/expression.h"
#include "grammar/json_notation.h"
#include "grammar/json_writer.h"
#include "grammar/text_language.h"

namespace millrace::grammar {

/// The parts of JSON (RFC 8259), or of a notation in its place, as rules of one Definition, made on first use. White
/// space between tokens is one blank, or a line feed with bounded indentation, so that a model cannot write space for
/// ever. Numbers have bounded digits. Lives while one schema is read.
class JsonRules {
 public:
  explicit JsonRules(Definition& definition, const JsonNotation& notation = {})
      : definition_(definition), notation_(notation), writer_(notation) {}

  [[nodiscard]] const JsonNotation& notation() const { return notation_; }
  /// Returns what writes single values.
  [[nodiscard]] JsonWriter& writer() { return writer_; }
  [[nodiscard]] ExpressionPtr space();
  [[nodiscard]] ExpressionPtr comma();
  [[nodiscard]] ExpressionPtr value();
  [[nodiscard]] ExpressionPtr object();
  [[nodiscard]] ExpressionPtr array();
  [[nodiscard]] ExpressionPtr string();
  [[nodiscard]] ExpressionPtr number();
  [[nodiscard]] ExpressionPtr integer();

  /// Returns a string of `min` to `max` characters. Where it takes too many states in addition to the tags that it may
  /// not hold, this function and the next two return any string, or null if strings have no quotes.
  [[nodiscard]] ExpressionPtr string_of(uint32_t min, std::optional<uint32_t> max);
  /// Returns a string whose characters are a text of the language.
  [[nodiscard]] ExpressionPtr string_of(const TextLanguage& language);
  /// Returns a string whose characters match an expression over characters.
  [[nodiscard]] ExpressionPtr string_of(const Expression& expression);
  /// Returns a string whose characters are a text of another definition, whose rules are copied. Fails if that takes
  /// too many states.
  [[nodiscard]] Result<ExpressionPtr> string_of(const Definition& source);

  /// Returns a key and what follows it, of a name or of any name of a language. Throws as JsonWriter does.
  [[nodiscard]] ExpressionPtr key(std::string_view name);
  [[nodiscard]] ExpressionPtr key(const TextLanguage& names, ReadWork& work);
  /// Returns any outermost object.
  [[nodiscard]] ExpressionPtr any_arguments();
  /// Returns an outermost object of these members.
  [[nodiscard]] ExpressionPtr arguments_of(ExpressionPtr members);

  /// Returns `min` to `max` repeats. Large counts are written as blocks, which take fewer states.
  [[nodiscard]] ExpressionPtr repeated(const ExpressionPtr& part, uint32_t min, std::optional<uint32_t> max);

 private:
  /// Returns a character of the set in a string. If the set is not everything, it is written as it is, or with its
  /// shortest escape.
  [[nodiscard]] ExpressionPtr string_char(const CharSet& chars);
  [[nodiscard]] ExpressionPtr any_char();
  [[nodiscard]] ExpressionPtr with_string_chars(const Expression& expression);
  [[nodiscard]] ExpressionPtr with_rules_of(const Definition& source);
  [[nodiscard]] ExpressionPtr in_quotes(ExpressionPtr characters) const;
  /// Returns a string of the characters that `write` returns, without the tags that it may not hold. Null if that takes
  /// too many states.
  template <class Write>
  [[nodiscard]] ExpressionPtr uncut_string(const Write& write);
  /// Returns a string that `write` returns. Where that takes too many states, any string with quotes, or null without.
  template <class Write>
  [[nodiscard]] ExpressionPtr string_with(const Write& write);
  [[nodiscard]] ExpressionPtr members(const ExpressionPtr& member);
  /// Returns the rule of this name. `make` makes it on first use.
  template <class Make>
  ExpressionPtr rule(std::optional<RuleIndex>& index, std::string_view name, const Make& make);

  Definition& definition_;
  const JsonNotation notation_;
  JsonWriter writer_;
  RuleIndex first_copy_ = 0;  // of the rules of the other definition
  std::optional<RuleIndex> space_, value_, object_, array_, string_, number_, integer_, escape_;
  std::map<uint64_t, ExpressionPtr> escapes_;  // by the characters that have to be escaped, one bit each
};

}  // namespace millrace::grammar
