#include "grammar/lark.h"

#include <array>
#include <utility>

#include "grammar/lark_common.h"
#include "grammar/regex_parser.h"
#include "grammar/rule_parser.h"

namespace millrace::grammar {
namespace {

constexpr std::array<std::string_view, 2> kComments = {"#", "//"};
constexpr RuleNotation kNotation{.comments = kComments,
                                 .name_marks = "_",
                                 .escapes = "nrtfv\"'/\\",
                                 .wanted_term = "a literal, a regular expression, a group or a name"};

/// Returns whether a name is that of a terminal, which is one token.
bool is_terminal(std::string_view name) {
  const size_t first = name.find_first_not_of('_');
  return first != std::string_view::npos && name[first] >= 'A' && name[first] <= 'Z';
}

/// Returns a text whose ASCII letters may have either case.
ExpressionPtr literal_of_any_case(std::string_view text) {
  std::vector<ExpressionPtr> chars;
  while (!text.empty()) {
    const DecodedUtf8 step = decode_utf8(text);
    chars.push_back(one_of(CharSet(step.code_point).with_both_cases()));
    text.remove_prefix(step.length);
  }
  return sequence(std::move(chars));
}

/// Returns the only character of a text, or nothing if it has another number of them.
std::optional<char32_t> single_char(std::string_view text) {
  const DecodedUtf8 step = decode_utf8(text);
  if (text.empty() || step.length != text.size()) return std::nullopt;
  return step.code_point;
}

class LarkParser final : public RuleParser {
 public:
  LarkParser(std::string_view text, Definition& definition) : RuleParser(text, kNotation, definition) {
    // A text may hold the word without a directive. The rule reads nothing then.
    if (text.find("%ignore") != std::string_view::npos) ignored_rule_ = definition_.add("ignored");
  }

  ExpressionPtr read() {
    const RuleIndex start = rule_named("start");
    read_statements();
    if (!ignored_rule_) return reference(start);
    definition_.rules[*ignored_rule_].expression = repeat(choice(std::move(ignored_)), 0);
    return sequence({reference(*ignored_rule_), reference(start)});
  }

 private:
  void read_statement() override {
    if (cursor_.take("%")) return read_directive();
    while (cursor_.take("!") || cursor_.take("?")) {
    }
    const std::string_view name = take_name();
    if (name.empty()) cursor_.fail("wanted the name of a rule or of a terminal");
    refuse_template();
    // A priority changes no text.
    if (cursor_.take(".")) skip_priority();
    skip_space(false);
    if (!cursor_.take(":")) cursor_.fail(fmt::format("wanted ':' after '{}'", shown_name(name)));
    skip_space(false);
    is_within_terminal_ = is_terminal(name);
    define(name, read_alternatives());
  }

  void skip_priority() {
    (void)cursor_.take("-");
    if (!cursor_.take_number(kMaxRepetitions)) cursor_.fail("wanted a priority after '.'");
  }

  void read_directive() {
    const std::string_view word = take_name();
    skip_space(false);
    if (word == "import") return read_import();
    if (word != "ignore") cursor_.fail(fmt::format("the directive %{} is not supported", shown_name(word)));
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
    const auto alias = take_alias();
    define(alias.value_or(name), common(name));
  }

  ExpressionPtr common(std::string_view name) const {
    const auto pattern = lark_common_terminal(name);
    if (!pattern) cursor_.fail(fmt::format("common has no terminal '{}'", shown_name(name)));
    return *parse_regex(*pattern);
  }

  /// Takes the name after `->`, if that stands here.
  std::optional<std::string_view> take_alias() {
    if (!take_after_space("->", false)) return std::nullopt;
    skip_space(false);
    const std::string_view alias = take_name();
    if (alias.empty()) cursor_.fail("wanted a name after '->'");
    return alias;
  }

  /// An alias names a node of the tree, and changes no text.
  void end_alternative() override { (void)take_alias(); }

  std::optional<RepeatRange> read_quantifier() override {
    if (const auto counts = take_quantifier_sign(cursor_)) return counts;
    if (!take_after_space("~", false)) return std::nullopt;
    skip_space(false);
    const auto min = cursor_.take_number(kMaxRepetitions);
    if (!min) cursor_.fail("wanted a count after '~'");
    auto max = min;
    if (cursor_.take("..")) max = cursor_.take_number(kMaxRepetitions);
    if (!max || *max < *min) cursor_.fail("wanted a larger count after '..'");
    return RepeatRange{*min, max};
  }

  ExpressionPtr read_own_term() override {
    if (cursor_.take("[")) return optional(read_group("]"));
    if (cursor_.take("\"")) return token(read_literal());
    if (cursor_.take("/")) return token(read_regex());
    return nullptr;
  }

  ExpressionPtr use_of(std::string_view name) override {
    refuse_template();
    if (is_terminal(name)) return token(reference(rule_named(name)));
    if (is_within_terminal_) {
      cursor_.fail(fmt::format("a terminal refers to the rule '{}', wanted terminals alone", shown_name(name)));
    }
    return reference(rule_named(name));
  }

  void refuse_template() const {
    if (cursor_.peek() == '{') cursor_.fail("templates of rules are not supported");
  }

  /// Returns a token of a rule, with what may stand after it. Parts of a terminal are no tokens.
  [[nodiscard]] ExpressionPtr token(ExpressionPtr text) const {
    if (is_within_terminal_ || !ignored_rule_) return text;
    return sequence({std::move(text), reference(*ignored_rule_)});
  }

  /// Reads the rest of a literal, which may begin a range of characters.
  ExpressionPtr read_literal() {
    const std::string text = read_quoted();
    if (take_after_space("..", false)) {
      skip_space(false);
      const auto low = single_char(text);
      const auto high = single_char(cursor_.take("\"") ? read_quoted() : "");
      if (!low || !high || *high < *low) cursor_.fail("a range wants two characters in order");
      return one_of(CharSet(*low, *high));
    }
    if (cursor_.peek() != 'i' || is_name_char(cursor_.peek(1))) return literal(text);
    cursor_.skip();
    return literal_of_any_case(text);
  }

  /// Reads the rest of a regular expression after its first slash, and its flags.
  ExpressionPtr read_regex() {
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

  std::optional<RuleIndex> ignored_rule_;
  std::vector<ExpressionPtr> ignored_;
  bool is_within_terminal_ = false;
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
