#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "grammar/expression.h"
#include "grammar/text_cursor.h"

namespace millrace::grammar {

/// The words in which notations of rules differ.
struct RuleNotation {
  std::span<const std::string_view> comments;  ///< each begins a comment, which ends with its line
  std::string_view name_marks;                 ///< characters of names besides letters and digits
  std::string_view escapes;                    ///< what a backslash may precede, besides `x`, `u` and `U`
  std::string_view wanted_term;                ///< the kinds of terms, for messages
};

/// Reads what notations of rules share: names, space, alternatives, groups, quantifiers and quoted texts. The parser of
/// one notation derives from it, reads the statements and terms, and lives for one parse. Throws ErrorException with
/// the position for errors.
class RuleParser {
 public:
  RuleParser(const RuleParser&) = delete;
  RuleParser& operator=(const RuleParser&) = delete;

 protected:
  RuleParser(std::string_view text, const RuleNotation& notation, Definition& definition)
      : cursor_(text), definition_(definition), notation_(notation) {}
  ~RuleParser() = default;

  /// Reads the rule or directive that begins here.
  virtual void read_statement() = 0;
  /// Reads a term of the notation that is neither a name nor in round brackets, if one begins here.
  virtual ExpressionPtr read_own_term() = 0;
  /// Reads the quantifier that stands here, if there is one.
  virtual std::optional<RepeatRange> read_quantifier() = 0;
  /// Returns a use of the named rule.
  virtual ExpressionPtr use_of(std::string_view name) { return reference(rule_named(name)); }
  /// Reads what may follow the terms of an alternative.
  virtual void end_alternative() {}

  /// Reads the whole text. Fails for a rule that is used, and that nothing defines.
  void read_statements();
  RuleIndex rule_named(std::string_view name);
  void define(std::string_view name, ExpressionPtr expression);

  /// Skips space and comments; line feeds only if the rule goes on in the next line.
  void skip_space(bool over_lines);
  /// Takes a word that space may precede.
  bool take_after_space(std::string_view word, bool over_lines);
  /// Takes a name, which is empty if none begins here.
  std::string_view take_name();
  [[nodiscard]] bool is_name_char(char c) const;

  ExpressionPtr read_alternatives();
  /// Reads the rest of a group after its opening bracket.
  ExpressionPtr read_group(std::string_view close);
  /// Reads the rest of a quoted text after its first quotation mark.
  std::string read_quoted();
  /// Reads a character or the escape of one.
  char32_t read_char();

  TextCursor cursor_;
  Definition& definition_;

 private:
  ExpressionPtr read_alternative();
  ExpressionPtr read_repeated();
  ExpressionPtr read_term();

  const RuleNotation& notation_;
  std::map<std::string, RuleIndex, std::less<>> by_name_;
  uint32_t nesting_ = 0;
};

/// Returns the beginning of a name, for messages.
[[nodiscard]] inline std::string_view shown_name(std::string_view name) {
  return name.substr(0, 64);
}

}  // namespace millrace::grammar
