#include "grammar/regex_parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <map>
#include <utility>

#include "grammar/text_cursor.h"
#include "grammar/text_language.h"
#include "text/unicode_properties.h"

namespace millrace::grammar {
namespace {

constexpr uint32_t kMaxGroupNesting = 100;

CharSet digits() {
  return {U'0', U'9'};
}

CharSet word_chars() {
  CharSet set = digits();
  set.add(U'a', U'z');
  set.add(U'A', U'Z');
  set.add(U'_', U'_');
  return set;
}

CharSet spaces() {
  CharSet set(U'\t', U'\r');
  set.add(U' ', U' ');
  return set;
}

/// Returns what some standard counts as a space: Python's, ECMAScript's or PCRE's.
CharSet all_spaces() {
  CharSet set = spaces();
  for (const CharSet::Range range : {CharSet::Range{0x1C, 0x1F},
                                     {0x85, 0x85},
                                     {0xA0, 0xA0},
                                     {0x1680, 0x1680},
                                     {0x2000, 0x200A},
                                     {0x2028, 0x2029},
                                     {0x202F, 0x202F},
                                     {0x205F, 0x205F},
                                     {0x3000, 0x3000},
                                     {0xFEFF, 0xFEFF}}) {
    set.add(range.low, range.high);
  }
  return set;
}

class RegexParser {
 public:
  explicit RegexParser(std::string_view pattern) : cursor_(pattern) {}

  [[nodiscard]] bool has_assertions() const { return has_assertions_; }
  /// Returns whether assertions stand anywhere, also at the ends, where they change nothing.
  [[nodiscard]] bool is_anchored() const { return has_assertions_ || has_anchors_; }

  ExpressionPtr read(bool is_search) {
    const ExpressionPtr anything = repeat(one_of(CharSet(0, CharSet::kMaxCodePoint)), 0);
    // The key is the anchors: alternatives with equal ones share what comes before and after them.
    std::map<std::pair<bool, bool>, std::vector<ExpressionPtr>> alternatives;
    do {
      take_flags();
      const bool from_begin = take_all({"^", "\\A"}) || !is_search;
      ExpressionPtr body = read_terms();
      const bool to_end = take_all({"$", "\\z", "\\Z"}) || !is_search;
      alternatives[{from_begin, to_end}].push_back(std::move(body));
    } while (cursor_.take("|"));
    if (!cursor_.at_end()) {
      cursor_.fail(cursor_.peek() == ')' ? "')' closes nothing" : "anchors are supported at the ends of the pattern");
    }
    std::vector<ExpressionPtr> searches;
    for (auto& [ends, bodies] : alternatives) {
      std::vector<ExpressionPtr> parts;
      if (!ends.first) parts.push_back(anything);
      parts.push_back(choice(std::move(bodies)));
      if (!ends.second) parts.push_back(anything);
      searches.push_back(sequence(std::move(parts)));
    }
    return choice(std::move(searches));
  }

 private:
  /// What groups like `(?i:…)` change.
  struct Flags {
    bool ignores_case = false;
    bool dot_is_any = false;
  };

  bool take_all(std::initializer_list<std::string_view> words) {
    bool taken = false;
    while (std::ranges::any_of(words, [&](std::string_view word) { return cursor_.take(word); })) taken = true;
    has_anchors_ = has_anchors_ || taken;
    return taken;
  }

  /// Reads `(?i)` and `(?s)`, which hold up to the end of the pattern or group.
  void take_flags() {
    for (;;) {
      const std::string_view rest = cursor_.rest();
      if (!rest.starts_with("(?")) return;
      const size_t end = rest.find_first_not_of("is", 2);
      if (end == 2 || end == std::string_view::npos || rest[end] != ')') return;
      for (const char flag : rest.substr(2, end - 2)) set_flag(flag);
      cursor_.skip(end + 1);
    }
  }

  void set_flag(char flag) { (flag == 'i' ? flags_.ignores_case : flags_.dot_is_any) = true; }

  ExpressionPtr read_alternatives() {
    std::vector<ExpressionPtr> alternatives;
    do alternatives.push_back(read_terms());
    while (cursor_.take("|"));
    return choice(std::move(alternatives));
  }

  ExpressionPtr read_terms() {
    std::vector<ExpressionPtr> terms;
    for (;;) {
      take_flags();
      const char next = cursor_.peek();
      if (cursor_.at_end() || next == '|' || next == ')') break;
      if (next == '$' && !is_inner_end()) break;
      if (nesting_ == 0 && next == '\\' && (cursor_.peek(1) == 'z' || cursor_.peek(1) == 'Z')) break;
      ExpressionPtr condition = take_assertion();
      terms.push_back(condition != nullptr ? std::move(condition) : read_quantified());
    }
    return sequence(std::move(terms));
  }

  /// Returns whether the next `$` is not at the end of an outermost alternative.
  [[nodiscard]] bool is_inner_end() const {
    if (nesting_ > 0) return true;
    const size_t after = cursor_.rest().find_first_not_of('$');
    return after != std::string_view::npos && cursor_.rest()[after] != '|';
  }

  /// Returns null if none comes next.
  ExpressionPtr take_assertion() {
    using enum Expression::Assertion;
    constexpr std::pair<std::string_view, Expression::Assertion> kAssertions[] = {
        {"^", kBegin}, {"$", kEnd}, {"\\b", kBoundary}, {"\\B", kNoBoundary}};
    for (const auto& [text, condition] : kAssertions) {
      if (!cursor_.take(text)) continue;
      has_assertions_ = true;
      return assertion(condition);
    }
    return nullptr;
  }

  ExpressionPtr read_quantified() {
    ExpressionPtr term = read_term();
    for (uint32_t quantifiers = 0; const auto counts = take_quantifier(cursor_); ++quantifiers) {
      if (quantifiers == kMaxQuantifiers) cursor_.fail("too many quantifiers in a row");
      term = repeat(std::move(term), counts->min, counts->max);
      if (cursor_.take("?")) continue;  // lazy
      if (cursor_.peek() == '+') cursor_.fail("possessive quantifiers are not supported");
      if (cursor_.peek() == '*') cursor_.fail("a quantifier after a quantifier");
    }
    return term;
  }

  ExpressionPtr read_term() {
    switch (cursor_.peek()) {
      case '(': return read_group();
      case '[': cursor_.skip(); return one_of(read_class());
      case '\\': cursor_.skip(); return one_of(cased(read_escape(false)));
      case '.':
        cursor_.skip();
        return one_of(flags_.dot_is_any ? CharSet(0, CharSet::kMaxCodePoint) : CharSet(U'\n').complement());
      case '*':
      case '+':
      case '?': cursor_.fail("a quantifier has nothing to repeat");
      default: return one_of(cased(CharSet(cursor_.take_char())));
    }
  }

  [[nodiscard]] CharSet cased(const CharSet& set) const { return flags_.ignores_case ? set.with_both_cases() : set; }

  ExpressionPtr read_group() {
    cursor_.skip();
    if (++nesting_ > kMaxGroupNesting) cursor_.fail("groups are nested too deeply");
    const Flags around = flags_;
    if (cursor_.take("?")) read_group_kind();
    ExpressionPtr group = read_alternatives();
    flags_ = around;
    if (!cursor_.take(")")) cursor_.fail("wanted ')'");
    --nesting_;
    return group;
  }

  void read_group_kind() {
    while (cursor_.peek() == 'i' || cursor_.peek() == 's') {
      set_flag(cursor_.peek());
      cursor_.skip();
    }
    if (cursor_.take(":")) return;
    if (cursor_.peek() == '=' || cursor_.peek() == '!') cursor_.fail("looking ahead is not supported");
    (void)cursor_.take("P");
    if (!cursor_.take("<")) cursor_.fail("this kind of group is not supported");
    if (cursor_.peek() == '=' || cursor_.peek() == '!') cursor_.fail("lookbehind is not supported");
    while (cursor_.peek() != '>') {
      if (!is_alphanumeric(cursor_.peek()) && cursor_.peek() != '_') cursor_.fail("wanted a group's name");
      cursor_.skip();
    }
    cursor_.skip();
  }

  CharSet read_class() {
    const bool is_complement = cursor_.take("^");
    CharSet set;
    for (bool is_first = true; is_first || cursor_.peek() != ']'; is_first = false) {
      if (cursor_.at_end()) cursor_.fail("wanted ']'");
      if (cursor_.rest().starts_with("[:")) cursor_.fail("named classes are not supported");
      const CharSet low = read_class_item(is_complement);
      if (cursor_.peek() != '-' || cursor_.peek(1) == ']' || cursor_.peek(1) == '\0') {
        set.add(low);
        continue;
      }
      cursor_.skip();
      const CharSet high = read_class_item(is_complement);
      const char32_t first = single(low);
      const char32_t last = single(high);
      if (first > last) cursor_.fail("a range is the wrong way round");
      set.add(first, last);
    }
    cursor_.skip();
    set = cased(set);
    return is_complement ? set.complement() : set;
  }

  char32_t single(const CharSet& set) const {
    if (set.ranges().size() != 1 || set.ranges()[0].low != set.ranges()[0].high) {
      cursor_.fail("a range wants single characters");
    }
    return set.ranges()[0].low;
  }

  CharSet read_class_item(bool is_complement) {
    if (cursor_.take("\\")) return read_escape(true, is_complement);
    return CharSet(cursor_.take_char());
  }

  // Standards differ on which characters are spaces. What is written is a space, or is none, by all of them.
  CharSet read_escape(bool in_class, bool is_complement = false) {
    const char c = cursor_.peek();
    if (!is_alphanumeric(c)) return CharSet(cursor_.take_char());
    cursor_.skip();
    switch (c) {
      case 'd': return digits();
      case 'D': return digits().complement();
      case 'w': return word_chars();
      case 'W': return word_chars().complement();
      case 's': return is_complement ? all_spaces() : spaces();
      case 'S': return (is_complement ? spaces() : all_spaces()).complement();
      case 't': return CharSet(U'\t');
      case 'n': return CharSet(U'\n');
      case 'r': return CharSet(U'\r');
      case 'f': return CharSet(U'\f');
      case 'v': return CharSet(U'\v');
      case '0': return CharSet(U'\0');
      case 'x': return CharSet(cursor_.take_hex(2));
      case 'u': return CharSet(read_unicode());
      case 'b':
        if (in_class) return CharSet(U'\b');
        break;
      case 'p': return read_property();
      case 'P': return read_property().complement();
      default:
        if (is_digit(c) || c == 'k') cursor_.fail("references back are not supported");
    }
    cursor_.fail(fmt::format("'\\{}' is not supported", c));
  }

  /// Reads `{Letter}`, `{^L}`, `{Script=Greek}` or `L` after `\p`.
  CharSet read_property() {
    if (!cursor_.take("{")) {
      if (!is_alphanumeric(cursor_.peek())) cursor_.fail("wanted the name of a property");
      const std::string_view letter = cursor_.rest().substr(0, 1);
      cursor_.skip();
      return property(letter);
    }
    const bool is_complement = cursor_.take("^");
    const size_t end = cursor_.rest().find('}');
    if (end == std::string_view::npos) cursor_.fail("wanted '}' after the name of a property");
    std::string_view name = cursor_.rest().substr(0, end);
    cursor_.skip(end + 1);
    if (const size_t equals = name.find('='); equals != std::string_view::npos) {
      constexpr std::string_view kKinds[] = {"General_Category", "gc", "Script", "sc"};
      if (std::ranges::find(kKinds, name.substr(0, equals)) == std::end(kKinds))
        cursor_.fail(fmt::format("properties by {} are not supported", name.substr(0, equals)));
      name.remove_prefix(equals + 1);
    }
    const CharSet set = property(name);
    return is_complement ? set.complement() : set;
  }

  CharSet property(std::string_view name) const {
    const auto known = text::property_set(name);
    if (!known) cursor_.fail(fmt::format("the property '{}' is not supported", name.substr(0, 64)));
    CharSet set;
    for (const text::CodePointRange& range : known->ranges()) set.add(range.first, range.last);
    return set;
  }

  char32_t read_unicode() {
    if (!cursor_.take("{")) return read_code_unit();
    uint32_t digit_count = 0;
    while (is_alphanumeric(cursor_.peek(digit_count))) ++digit_count;
    if (digit_count == 0 || digit_count > 6) cursor_.fail("wanted 1 to 6 hexadecimal digits");
    const char32_t c = cursor_.take_hex(digit_count);
    if (!cursor_.take("}")) cursor_.fail("wanted '}'");
    return c;
  }

  /// Reads four digits, and the other half of a surrogate pair.
  char32_t read_code_unit() {
    constexpr std::string_view kHigh = "89abAB";
    constexpr std::string_view kLow = "cdefCDEF";
    const auto is_half = [&](size_t at, std::string_view second) {
      const std::string_view digits = cursor_.rest().substr(std::min(at, cursor_.rest().size()), 4);
      return digits.size() == 4 && (digits[0] == 'd' || digits[0] == 'D') &&
             second.find(digits[1]) != std::string_view::npos;
    };
    const bool is_pair = is_half(0, kHigh) && cursor_.rest().substr(4).starts_with("\\u") && is_half(6, kLow);
    if (!is_pair) return cursor_.take_hex(4);
    uint32_t unit = 0;
    const std::string_view rest = cursor_.rest();
    const auto units = [&](size_t at) {
      const std::string_view digits = rest.substr(at, 4);
      const bool is_read = std::from_chars(digits.data(), digits.data() + 4, unit, 16).ptr == digits.data() + 4;
      if (!is_read) cursor_.fail("wanted four hexadecimal digits");
      return unit;
    };
    const char32_t c = 0x10000 + ((units(0) & 0x3FF) << 10 | (units(6) & 0x3FF));
    cursor_.skip(10);
    return c;
  }

  TextCursor cursor_;
  bool has_assertions_ = false;
  bool has_anchors_ = false;  // at the ends
  uint32_t nesting_ = 0;
  Flags flags_;
};

}  // namespace

Result<ExpressionPtr> parse_regex(std::string_view pattern, Anchoring anchoring) {
  try {
    RegexParser parser(pattern);
    ExpressionPtr expression = parser.read(false);
    if (anchoring == Anchoring::kRefused && parser.is_anchored()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "a part of a grammar cannot have the assertions ^, $, \\b, \\B, \\A, \\z and \\Z");
    }
    if (!parser.has_assertions()) return expression;
    ReadWork work;
    return TextLanguage::of_expression(*expression, work).expression([](const CharSet& chars) {
      return one_of(chars);
    });
  } catch (const ErrorException& failure) {
    return failure.error();
  }
}

Result<SearchPattern> parse_search_pattern(std::string_view pattern) {
  try {
    RegexParser parser(pattern);
    ExpressionPtr expression = parser.read(true);
    return SearchPattern{std::move(expression), parser.has_assertions()};
  } catch (const ErrorException& failure) {
    return failure.error();
  }
}

}  // namespace millrace::grammar
