#include "grammar/lark.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "grammar/regex_parser.h"
#include "grammar/text_cursor.h"

namespace millrace::grammar {
namespace {

constexpr uint32_t kMaxGroupDepth = 100;

/// Lark's library `common`, as regular expressions.
constexpr std::array<std::pair<std::string_view, std::string_view>, 24> kCommon = {
    {{"DIGIT", "[0-9]"},
     {"HEXDIGIT", "[a-fA-F0-9]"},
     {"INT", "[0-9]+"},
     {"SIGNED_INT", "[+-]?[0-9]+"},
     {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
     {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
     {"SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
     {"NUMBER", "([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
     {"SIGNED_NUMBER", "[+-]?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
     {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\.)*\""},
     {"LCASE_LETTER", "[a-z]"},
     {"UCASE_LETTER", "[A-Z]"},
     {"LETTER", "[a-zA-Z]"},
     {"WORD", "[a-zA-Z]+"},
     {"CNAME", "[_a-zA-Z][_a-zA-Z0-9]*"},
     {"WS_INLINE", "[ \\t]+"},
     {"WS", "[ \\t\\f\\r\\n]+"},
     {"CR", "\\r"},
     {"LF", "\\n"},
     {"NEWLINE", "(\\r?\\n)+"},
     {"SH_COMMENT", "#[^\\n]*"},
     {"CPP_COMMENT", "//[^\\n]*"},
     {"C_COMMENT", "/\\*([^*]|\\*+[^*/])*\\*+/"},
     {"SQL_COMMENT", "--[^\\n]*"}}};

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_name_char(char c) {
  return is_letter(c) || (c >= '0' && c <= '9') || c == '_';
}

/// Returns whether a name is that of a terminal, which is one token.
bool is_terminal(std::string_view name) {
  const size_t first = name.find_first_not_of('_');
  return first != std::string_view::npos && name[first] >= 'A' && name[first] <= 'Z';
}

ExpressionPtr without_case(std::string_view text) {
  std::vector<ExpressionPtr> parts;
  // Whole characters, since an expression is read by characters too.
  std::string others;
  for (const char c : text) {
    if (!is_letter(c)) {
      others += c;
      continue;
    }
    if (!others.empty()) parts.push_back(literal(std::exchange(others, {})));
    CharSet both(static_cast<char32_t>(c));
    const auto other = static_cast<char32_t>(c ^ 0x20);
    both.add(other, other);
    parts.push_back(one_of(std::move(both)));
  }
  if (!others.empty()) parts.push_back(literal(std::move(others)));
  return sequence(std::move(parts));
}

class LarkParser {
 public:
  LarkParser(std::string_view text, Definition& definition) : cursor_(text), definition_(definition) {
    // Only a guess: without a directive the rule reads nothing.
    if (text.find("%ignore") != std::string_view::npos) ignored_rule_ = definition_.add("ignored");
  }

  ExpressionPtr read() {
    const RuleIndex start = rule_named("start");
    for (skip_space(true); !cursor_.at_end(); skip_space(true)) read_statement();
    for (const auto& [name, rule] : by_name_) {
      if (definition_.rules[rule].expression == nullptr) cursor_.fail(fmt::format("nothing defines '{}'", name));
    }
    if (!ignored_rule_) return reference(start);
    definition_.rules[*ignored_rule_].expression = repeat(choice(std::move(ignored_)), 0);
    return sequence({reference(*ignored_rule_), reference(start)});
  }

 private:
  RuleIndex rule_named(std::string_view name) {
    const auto [entry, is_new] = by_name_.try_emplace(std::string(name), 0);
    if (is_new) entry->second = definition_.add(std::string(name));
    return entry->second;
  }

  void define(std::string_view name, ExpressionPtr expression) {
    ExpressionPtr& target = definition_.rules[rule_named(name)].expression;
    if (target != nullptr) cursor_.fail(fmt::format("'{}' is defined twice", name));
    target = std::move(expression);
  }

  /// Skips white space and comments. A rule goes on in the next line inside a group, and before or after a `|`.
  void skip_space(bool over_lines) {
    for (;;) {
      const char c = cursor_.peek();
      if (c == '#' || (c == '/' && cursor_.peek(1) == '/')) {
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

  void read_statement() {
    if (cursor_.take("%")) {
      read_directive();
    } else {
      read_rule();
    }
    skip_space(false);
    if (!cursor_.at_end() && cursor_.peek() != '\n') cursor_.fail("wanted the end of the line");
  }

  void read_directive() {
    const std::string_view word = take_name();
    skip_space(false);
    if (word == "import") return read_import();
    if (word != "ignore") cursor_.fail(fmt::format("the directive %{} is not supported", word.substr(0, 64)));
    is_within_terminal_ = true;
    ignored_.push_back(read_alternatives());
  }

  /// Reads `common.NAME`, `common.NAME -> OTHER` or `common (NAME, OTHER)`.
  void read_import() {
    if (take_name() != "common") cursor_.fail("only terminals of common can be imported");
    skip_space(false);
    if (cursor_.take("(")) {
      do {
        skip_space(true);
        const std::string_view name = take_name();
        define(name, common(name));
        skip_space(true);
      } while (cursor_.take(","));
      if (!cursor_.take(")")) cursor_.fail("wanted ')'");
      return;
    }
    if (!cursor_.take(".")) cursor_.fail("wanted '.' and the name of a terminal of common");
    const std::string_view name = take_name();
    std::string_view alias = name;
    skip_space(false);
    if (cursor_.take("->")) {
      skip_space(false);
      alias = take_name();
      if (alias.empty()) cursor_.fail("wanted a name after '->'");
    }
    define(alias, common(name));
  }

  ExpressionPtr common(std::string_view name) const {
    const auto* const found = std::ranges::find(kCommon, name, [](const auto& row) { return row.first; });
    if (found == kCommon.end()) cursor_.fail(fmt::format("common has no terminal '{}'", name.substr(0, 64)));
    return *parse_regex(found->second);
  }

  void read_rule() {
    while (cursor_.take("!") || cursor_.take("?")) {
    }
    const std::string_view name = take_name();
    if (name.empty()) cursor_.fail("wanted the name of a rule or of a terminal");
    if (cursor_.peek() == '{') cursor_.fail("templates of rules are not supported");
    if (cursor_.take(".")) {
      (void)cursor_.take("-");
      // A priority changes no text.
      if (!cursor_.take_number(kMaxRepetitions)) cursor_.fail("wanted a priority after '.'");
    }
    skip_space(false);
    if (!cursor_.take(":")) cursor_.fail(fmt::format("wanted ':' after '{}'", name));
    is_within_terminal_ = is_terminal(name);
    define(name, read_alternatives());
  }

  ExpressionPtr read_alternatives() {
    std::vector<ExpressionPtr> alternatives;
    skip_space(nesting_ > 0);
    for (;;) {
      alternatives.push_back(read_terms());
      skip_space(false);
      if (cursor_.take("->")) {
        skip_space(false);
        if (take_name().empty()) cursor_.fail("wanted a name after '->'");
      }
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
      const bool is_alias = next == '-' && cursor_.peek(1) == '>';
      if (cursor_.at_end() || next == '|' || next == ')' || next == ']' || next == '\n' || is_alias) break;
      terms.push_back(read_repeated());
    }
    return sequence(std::move(terms));
  }

  ExpressionPtr read_repeated() {
    ExpressionPtr term = read_term();
    for (uint32_t quantifiers = 0;; ++quantifiers) {
      if (quantifiers == kMaxQuantifiers) cursor_.fail("too many quantifiers in a row");
      if (cursor_.take("*")) {
        term = repeat(std::move(term), 0);
      } else if (cursor_.take("+")) {
        term = repeat(std::move(term), 1);
      } else if (cursor_.take("?")) {
        term = optional(std::move(term));
      } else if (cursor_.peek() == '~' || is_spaced_count()) {
        term = read_count(std::move(term));
      } else {
        return term;
      }
    }
  }

  [[nodiscard]] bool is_spaced_count() const {
    const size_t next = cursor_.rest().find_first_not_of(' ');
    return next != std::string_view::npos && cursor_.rest()[next] == '~';
  }

  ExpressionPtr read_count(ExpressionPtr term) {
    skip_space(false);
    cursor_.skip();
    skip_space(false);
    const auto min = cursor_.take_number(kMaxRepetitions);
    if (!min) cursor_.fail("wanted a count after '~'");
    auto max = min;
    if (cursor_.take("..")) max = cursor_.take_number(kMaxRepetitions);
    if (!max || *max < *min) cursor_.fail("wanted a larger count after '..'");
    return repeat(std::move(term), *min, max);
  }

  ExpressionPtr read_term() {
    const char next = cursor_.peek();
    if (next == '(' || next == '[') return read_group();
    if (next == '"') return token(read_literal());
    if (next == '/') return token(read_regex());
    const std::string_view name = take_name();
    if (name.empty()) cursor_.fail("wanted a literal, a regular expression, a group or a name");
    if (cursor_.peek() == '{') cursor_.fail("templates of rules are not supported");
    if (is_within_terminal_ && !is_terminal(name)) {
      cursor_.fail(fmt::format("a terminal refers to the rule '{}', wanted terminals alone", name));
    }
    ExpressionPtr named = reference(rule_named(name));
    return is_terminal(name) ? token(std::move(named)) : named;
  }

  /// Returns a token of a rule, with what may stand after it. Parts of a terminal are no tokens.
  [[nodiscard]] ExpressionPtr token(ExpressionPtr text) const {
    if (is_within_terminal_ || !ignored_rule_) return text;
    return sequence({std::move(text), reference(*ignored_rule_)});
  }

  ExpressionPtr read_group() {
    const bool is_optional = cursor_.peek() == '[';
    cursor_.skip();
    if (++nesting_ > kMaxGroupDepth) cursor_.fail("groups are nested too deeply");
    ExpressionPtr group = read_alternatives();
    skip_space(true);
    if (!cursor_.take(is_optional ? "]" : ")")) cursor_.fail(is_optional ? "wanted ']'" : "wanted ')'");
    --nesting_;
    return is_optional ? optional(std::move(group)) : group;
  }

  /// Takes a word that blanks may precede.
  bool take_after_blanks(std::string_view word) {
    const TextCursor here = cursor_;
    skip_space(false);
    if (cursor_.take(word)) return true;
    cursor_ = here;
    return false;
  }

  ExpressionPtr read_literal() {
    const std::string text = take_text();
    if (take_after_blanks("..")) {
      skip_space(false);
      const std::string last = cursor_.peek() == '"' ? take_text() : std::string();
      const DecodedUtf8 low = decode_utf8(text);
      const DecodedUtf8 high = decode_utf8(last);
      const bool is_range = !text.empty() && !last.empty() && low.length == text.size() && high.length == last.size();
      if (!is_range || high.code_point < low.code_point) cursor_.fail("a range wants two characters in order");
      return one_of(CharSet(low.code_point, high.code_point));
    }
    if (cursor_.peek() == 'i' && !is_name_char(cursor_.peek(1))) {
      cursor_.skip();
      return without_case(text);
    }
    return literal(text);
  }

  std::string take_text() {
    std::string text;
    cursor_.skip();
    while (!cursor_.take("\"")) {
      if (cursor_.at_end() || cursor_.peek() == '\n') cursor_.fail("a literal has no end");
      append_utf8(text, read_char());
    }
    return text;
  }

  char32_t read_char() {
    if (!cursor_.take("\\")) return cursor_.take_char();
    const char32_t c = cursor_.take_char();
    switch (c) {
      case U'n': return U'\n';
      case U'r': return U'\r';
      case U't': return U'\t';
      case U'f': return U'\f';
      case U'v': return U'\v';
      case U'x': return cursor_.take_hex(2);
      case U'u': return cursor_.take_hex(4);
      case U'U': return cursor_.take_hex(8);
      case U'"':
      case U'\'':
      case U'/':
      case U'\\': return c;
      default: cursor_.fail("this escape is not supported");
    }
  }

  ExpressionPtr read_regex() {
    cursor_.skip();
    size_t length = 0;
    for (;; ++length) {
      const char c = cursor_.peek(length);
      if (length >= cursor_.rest().size() || c == '\n') cursor_.fail("a regular expression has no end");
      if (c == '/') break;
      if (c == '\\') ++length;
    }
    std::string pattern(cursor_.rest().substr(0, length));
    const TextCursor begin = cursor_;
    cursor_.skip(length + 1);
    for (; is_letter(cursor_.peek()); cursor_.skip()) {
      const char flag = cursor_.peek();
      if (flag == 'i' || flag == 's') {
        pattern.insert(0, fmt::format("(?{})", flag));
      } else if (flag != 'u') {
        cursor_.fail(fmt::format("the flag '{}' of a regular expression is not supported", flag));
      }
    }
    auto parsed = parse_regex(pattern, Anchoring::kRefused);
    if (parsed.has_error()) begin.fail(parsed.error().message);
    return std::move(*parsed);
  }

  TextCursor cursor_;
  Definition& definition_;
  std::map<std::string, RuleIndex, std::less<>> by_name_;
  std::optional<RuleIndex> ignored_rule_;
  std::vector<ExpressionPtr> ignored_;
  bool is_within_terminal_ = false;
  uint32_t nesting_ = 0;
};

}  // namespace

Result<ExpressionPtr> parse_lark(std::string_view text, Definition& definition) {
  try {
    return LarkParser(text, definition).read();
  } catch (const ErrorException& failure) {
    return failure.error();
  }
}

}  // namespace millrace::grammar
