#include "grammar/ebnf.h"

#include <map>

#include "grammar/text_cursor.h"

namespace millrace::grammar {
namespace {

constexpr uint32_t kMaxGroupDepth = 100;

bool is_name_char(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-';
}

class EbnfParser {
 public:
  EbnfParser(std::string_view text, Definition& definition) : cursor_(text), definition_(definition) {}

  ExpressionPtr read() {
    const RuleIndex root = rule_named("root");
    for (skip_space(true); !cursor_.at_end(); skip_space(true)) read_rule();
    for (const auto& [name, rule] : by_name_) {
      if (definition_.rules[rule].expression == nullptr) cursor_.fail(fmt::format("there is no rule '{}'", name));
    }
    return reference(root);
  }

 private:
  RuleIndex rule_named(std::string_view name) {
    const auto [entry, is_new] = by_name_.try_emplace(std::string(name), 0);
    if (is_new) entry->second = definition_.add(std::string(name));
    return entry->second;
  }

  /// Skips white space. A rule goes on in the next line inside a group, and before or after a `|`.
  void skip_space(bool over_lines) {
    for (;;) {
      const char c = cursor_.peek();
      if (c == '#') {
        while (!cursor_.at_end() && cursor_.peek() != '\n') cursor_.skip();
      } else if (c == ' ' || c == '\t' || c == '\r' || (over_lines && c == '\n')) {
        cursor_.skip();
      } else {
        return;
      }
    }
  }

  std::string_view take_name() {
    size_t length = 0;
    while (is_name_char(cursor_.peek(length))) ++length;
    const std::string_view name = cursor_.rest().substr(0, length);
    cursor_.skip(length);
    return name;
  }

  void read_rule() {
    const std::string name(take_name());
    if (name.empty()) cursor_.fail("wanted the name of a rule");
    skip_space(false);
    if (!cursor_.take("::=")) cursor_.fail(fmt::format("wanted '::=' after '{}'", name));
    const RuleIndex rule = rule_named(name);
    if (definition_.rules[rule].expression != nullptr) cursor_.fail(fmt::format("'{}' is defined twice", name));
    skip_space(true);
    ExpressionPtr expression = read_alternatives();
    definition_.rules[rule].expression = std::move(expression);
    if (!cursor_.at_end() && cursor_.peek() != '\n') cursor_.fail("wanted the end of the line");
  }

  ExpressionPtr read_alternatives() {
    std::vector<ExpressionPtr> alternatives;
    for (;;) {
      alternatives.push_back(read_terms());
      if (!continues_with_alternative()) break;
      cursor_.skip();
      skip_space(true);
    }
    return choice(std::move(alternatives));
  }

  /// Returns whether the text goes on with a `|`, which may begin one of the next lines.
  bool continues_with_alternative() {
    const TextCursor here = cursor_;
    skip_space(true);
    if (cursor_.peek() == '|') return true;
    cursor_ = here;
    return false;
  }

  ExpressionPtr read_terms() {
    std::vector<ExpressionPtr> terms;
    for (;; skip_space(nesting_ > 0)) {
      const char next = cursor_.peek();
      if (cursor_.at_end() || next == '|' || next == ')' || next == '\n') break;
      terms.push_back(read_repeated());
    }
    return sequence(std::move(terms));
  }

  ExpressionPtr read_repeated() {
    ExpressionPtr term = read_term();
    for (uint32_t quantifiers = 0; const auto counts = take_quantifier(cursor_); ++quantifiers) {
      if (quantifiers == kMaxQuantifiers) cursor_.fail("too many quantifiers in a row");
      term = repeat(std::move(term), counts->min, counts->max);
    }
    return term;
  }

  ExpressionPtr read_term() {
    if (cursor_.take("\"")) return read_literal();
    if (cursor_.take("[")) return read_class();
    if (cursor_.take(".")) return one_of(CharSet(0, CharSet::kMaxCodePoint));
    if (cursor_.take("(")) {
      if (++nesting_ > kMaxGroupDepth) cursor_.fail("groups are nested too deeply");
      skip_space(true);
      ExpressionPtr group = read_alternatives();
      skip_space(true);
      if (!cursor_.take(")")) cursor_.fail("wanted ')'");
      --nesting_;
      return group;
    }
    const std::string_view name = take_name();
    if (name.empty()) cursor_.fail("wanted a literal, a class, a group or a rule");
    return reference(rule_named(name));
  }

  ExpressionPtr read_literal() {
    std::string text;
    while (!cursor_.take("\"")) {
      if (cursor_.at_end() || cursor_.peek() == '\n') cursor_.fail("a literal has no end");
      append_utf8(text, read_char());
    }
    return literal(std::move(text));
  }

  ExpressionPtr read_class() {
    const bool is_complement = cursor_.take("^");
    CharSet set;
    while (!cursor_.take("]")) {
      if (cursor_.at_end() || cursor_.peek() == '\n') cursor_.fail("a class has no end");
      const char32_t low = read_char();
      char32_t high = low;
      if (cursor_.peek() == '-' && cursor_.peek(1) != ']') {
        cursor_.skip();
        high = read_char();
      }
      if (high < low) cursor_.fail("a range is the wrong way round");
      set.add(low, high);
    }
    return one_of(is_complement ? set.complement() : std::move(set));
  }

  char32_t read_char() {
    if (!cursor_.take("\\")) return cursor_.take_char();
    const char32_t c = cursor_.take_char();
    switch (c) {
      case U'n': return U'\n';
      case U'r': return U'\r';
      case U't': return U'\t';
      case U'x': return cursor_.take_hex(2);
      case U'u': return cursor_.take_hex(4);
      case U'U': return cursor_.take_hex(8);
      case U'"':
      case U'\'':
      case U'\\':
      case U'[':
      case U']':
      case U'^':
      case U'-':
      case U'/': return c;
      default: cursor_.fail("this escape is not supported");
    }
  }

  TextCursor cursor_;
  Definition& definition_;
  std::map<std::string, RuleIndex> by_name_;
  uint32_t nesting_ = 0;
};

}  // namespace

Result<ExpressionPtr> parse_ebnf(std::string_view text, Definition& definition) {
  try {
    return EbnfParser(text, definition).read();
  } catch (const ErrorException& failure) {
    return failure.error();
  }
}

}  // namespace millrace::grammar
