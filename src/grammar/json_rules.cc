#include "grammar/json_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "base/json.h"
#include "base/utf8.h"

namespace millrace::grammar {
namespace {

constexpr uint32_t kMaxIndentation = 32;
constexpr uint32_t kMaxDigits = 18;  // of a whole number: what 64 bits hold
constexpr uint32_t kMaxFractionDigits = 18;
constexpr uint32_t kMaxExponentDigits = 3;

CharSet digit_set() {
  return {U'0', U'9'};
}
ExpressionPtr digit() {
  return one_of(digit_set());
}

ExpressionPtr hex_digits(uint32_t count) {
  CharSet set = digit_set();
  set.add(U'a', U'f');
  set.add(U'A', U'F');
  return repeat(one_of(std::move(set)), count, count);
}

ExpressionPtr either_of(std::string_view chars) {
  CharSet set;
  for (const char c : chars) set.add(static_cast<char32_t>(c), static_cast<char32_t>(c));
  return one_of(std::move(set));
}

/// `\u` and four digits of a character; of two halves where it has them.
ExpressionPtr unicode_escape() {
  ExpressionPtr first_is_not_d = sequence({either_of("0123456789abcefABCEF"), hex_digits(3)});
  ExpressionPtr second_below_8 = sequence({either_of("dD"), either_of("01234567"), hex_digits(2)});
  ExpressionPtr halves = sequence({either_of("dD"), either_of("89abAB"), hex_digits(2), literal("\\u"), either_of("dD"),
                                   either_of("cdefCDEF"), hex_digits(2)});
  return sequence({literal("u"), choice({std::move(first_is_not_d), std::move(second_below_8), std::move(halves)})});
}

/// What a string's character may be as it is.
CharSet unescaped() {
  CharSet special(0, 0x1F);
  special.add(U'"', U'"');
  special.add(U'\\', U'\\');
  return special.complement();
}

std::string nines(size_t count) {
  return std::string(count, '9');
}

ExpressionPtr digit_between(char low, char high) {
  return one_of(CharSet(static_cast<char32_t>(low), static_cast<char32_t>(high)));
}

ExpressionPtr any_digits(size_t count) {
  const auto times = static_cast<uint32_t>(count);
  return repeat(digit(), times, times);
}

/// Numbers of as many digits as both bounds have, between them.
ExpressionPtr digits_between(std::string_view low, std::string_view high) {
  if (low.empty()) return literal("");
  const std::string_view low_rest = low.substr(1);
  const std::string_view high_rest = high.substr(1);
  if (low[0] == high[0]) return sequence({literal(std::string(1, low[0])), digits_between(low_rest, high_rest)});
  const bool from_zeros = low_rest.find_first_not_of('0') == std::string_view::npos;
  const bool to_nines = high_rest.find_first_not_of('9') == std::string_view::npos;
  const char first = static_cast<char>(from_zeros ? low[0] : low[0] + 1);
  const char last = static_cast<char>(to_nines ? high[0] : high[0] - 1);
  std::vector<ExpressionPtr> parts;
  if (!from_zeros) {
    parts.push_back(sequence({literal(std::string(1, low[0])), digits_between(low_rest, nines(low_rest.size()))}));
  }
  if (first <= last) parts.push_back(sequence({digit_between(first, last), any_digits(low_rest.size())}));
  if (!to_nines) {
    const std::string zeros(high_rest.size(), '0');
    parts.push_back(sequence({literal(std::string(1, high[0])), digits_between(zeros, high_rest)}));
  }
  return choice(std::move(parts));
}

/// None if low > high.
ExpressionPtr natural_between(const std::string& low, const std::string& high) {
  std::vector<ExpressionPtr> parts;
  if (compare_digits(low, high) > 0) return choice({});
  for (size_t count = low.size(); count <= high.size(); ++count) {
    const std::string first = count == low.size() ? low : "1" + std::string(count - 1, '0');
    parts.push_back(digits_between(first, count == high.size() ? high : nines(count)));
  }
  return choice(std::move(parts));
}

ExpressionPtr some_fraction() {
  return sequence({literal("."), repeat(digit(), 1, kMaxFractionDigits)});
}

ExpressionPtr zero_fraction() {
  return sequence({literal("."), repeat(literal("0"), 1, kMaxFractionDigits)});
}

ExpressionPtr fraction_above_zero() {
  return sequence({literal("."), repeat(literal("0"), 0, kMaxFractionDigits - 1), digit_between('1', '9'),
                   repeat(digit(), 0, kMaxFractionDigits - 1)});
}

/// Decimal numbers without sign from `low` to `high`.
ExpressionPtr decimal_between(const std::string& low, const std::string& high, bool excludes_low, bool excludes_high) {
  std::vector<ExpressionPtr> parts;
  const auto add = [&](ExpressionPtr whole, ExpressionPtr rest) {
    parts.push_back(sequence({std::move(whole), std::move(rest)}));
  };
  const auto order = compare_digits(low, high);
  if (order < 0) {
    add(literal(low), excludes_low ? fraction_above_zero() : optional(some_fraction()));
    if (digits_after(low) != high)
      add(natural_between(digits_after(low), digits_before(high)), optional(some_fraction()));
  }
  const bool has_high = order < 0 ? !excludes_high : order == 0 && !excludes_low && !excludes_high;
  if (has_high) add(literal(high), optional(zero_fraction()));
  return choice(std::move(parts));
}

}  // namespace

template <class Make>
ExpressionPtr JsonRules::rule(std::optional<RuleIndex>& index, std::string_view name, const Make& make) {
  if (!index) {
    index = definition_.add(std::string(name));
    ExpressionPtr made = make();  // may refer to it, and adds rules
    definition_.rules[*index].expression = std::move(made);
  }
  return reference(*index);
}

ExpressionPtr JsonRules::space() {
  return rule(space_, "space", [] {
    ExpressionPtr indentation = repeat(either_of(" \t"), 0, kMaxIndentation);
    return choice({literal(""), literal(" "), sequence({literal("\n"), std::move(indentation)})});
  });
}

ExpressionPtr JsonRules::value() {
  return rule(value_, "value", [this] {
    return choice({object(), array(), string(), number(), literal("true"), literal("false"), literal("null")});
  });
}

ExpressionPtr JsonRules::object() {
  return rule(object_, "object", [this] {
    const ExpressionPtr member = sequence({string(), literal(":"), space(), value()});
    const ExpressionPtr more = repeat(sequence({literal(","), space(), member}), 0);
    return sequence({literal("{"), space(), optional(sequence({member, more, space()})), literal("}")});
  });
}

ExpressionPtr JsonRules::array() {
  return rule(array_, "array", [this] {
    const ExpressionPtr more = repeat(sequence({literal(","), space(), value()}), 0);
    return sequence({literal("["), space(), optional(sequence({value(), more, space()})), literal("]")});
  });
}

ExpressionPtr JsonRules::string_char(const CharSet& chars) {
  std::vector<ExpressionPtr> spellings;
  CharSet raw = chars.without(unescaped().complement());
  if (!raw.empty()) spellings.push_back(one_of(std::move(raw)));
  constexpr std::pair<char32_t, char> kShort[] = {{U'"', '"'},  {U'\\', '\\'}, {U'\b', 'b'}, {U'\f', 'f'},
                                                  {U'\n', 'n'}, {U'\r', 'r'},  {U'\t', 't'}};
  for (const auto& [c, spelling] : kShort) {
    if (chars.contains(c)) spellings.push_back(literal(std::string{'\\', spelling}));
  }
  for (char32_t c = 0; c < 0x20; ++c) {
    const bool has_short = c == U'\b' || c == U'\f' || c == U'\n' || c == U'\r' || c == U'\t';
    if (!has_short && chars.contains(c)) {
      spellings.push_back(literal(fmt::format("\\u00{:02x}", static_cast<uint32_t>(c))));
    }
  }
  return choice(std::move(spellings));
}

ExpressionPtr JsonRules::any_char() {
  return rule(char_, "character", [] {
    return choice(
        {one_of(unescaped()), sequence({literal("\\"), choice({either_of("\"\\/bfnrt"), unicode_escape()})})});
  });
}

ExpressionPtr JsonRules::string() {
  return rule(string_, "string", [this] {
    (void)any_char();
    const ExpressionPtr body = definition_.rules[*char_].expression;  // in place: it is met at every token
    return sequence({literal("\""), repeat(body, 0), literal("\"")});
  });
}

ExpressionPtr JsonRules::string_of(uint32_t min, std::optional<uint32_t> max) {
  if (min == 0 && !max) return string();
  return sequence({literal("\""), repeat(any_char(), min, max), literal("\"")});
}

ExpressionPtr JsonRules::number() {
  return rule(number_, "number", [] {
    ExpressionPtr whole =
        choice({literal("0"), sequence({digit_between('1', '9'), repeat(digit(), 0, kMaxDigits - 1)})});
    ExpressionPtr exponent =
        sequence({either_of("eE"), optional(either_of("+-")), repeat(digit(), 1, kMaxExponentDigits)});
    return sequence(
        {optional(literal("-")), std::move(whole), optional(some_fraction()), optional(std::move(exponent))});
  });
}

ExpressionPtr JsonRules::integer() {
  return rule(integer_, "integer", [] {
    return sequence({optional(literal("-")),
                     choice({literal("0"), sequence({digit_between('1', '9'), repeat(digit(), 0, kMaxDigits - 1)})})});
  });
}

IntegerRange JsonRules::whole_range(const NumberRange& range) {
  const auto far_from = [](const std::optional<WholeNumber>& bound) {
    return nines(bound && bound->digits.size() >= kMaxDigits ? bound->digits.size() + 1 : kMaxDigits);
  };
  return {range.low.value_or(WholeNumber{far_from(range.high), true}),
          range.high.value_or(WholeNumber{far_from(range.low), false})};
}

ExpressionPtr JsonRules::integer_between(const IntegerRange& range) {
  std::vector<ExpressionPtr> parts;
  if (range.low.is_negative) {
    const std::string min = range.high.is_negative ? range.high.digits : "1";
    parts.push_back(sequence({literal("-"), natural_between(min, range.low.digits)}));
  }
  if (!range.high.is_negative) {
    parts.push_back(natural_between(range.low.is_negative ? "0" : range.low.digits, range.high.digits));
  }
  return choice(std::move(parts));
}

ExpressionPtr JsonRules::number_between(const NumberRange& range) {
  const auto [low, high] = whole_range(range);
  std::vector<ExpressionPtr> parts;
  if (low.is_negative) {
    // From the smaller magnitude on; -0 is left to 0.
    const std::string min = high.is_negative ? high.digits : "0";
    const bool without_least = !high.is_negative || range.excludes_high;
    parts.push_back(sequence({literal("-"), decimal_between(min, low.digits, without_least, range.excludes_low)}));
  }
  if (!high.is_negative) {
    const std::string min = low.is_negative ? "0" : low.digits;
    parts.push_back(decimal_between(min, high.digits, !low.is_negative && range.excludes_low, range.excludes_high));
  }
  return choice(std::move(parts));
}

ExpressionPtr JsonRules::quoted(std::string_view text) {
  std::string json;
  append_json_string(json, text);
  return literal(std::move(json));
}

/// What may follow where the names that the key can still become have these rests: it leaves all of them by a
/// character, or ends where none does.
ExpressionPtr JsonRules::rest_of_other_key(const std::vector<std::string_view>& rests) {
  std::map<char32_t, std::vector<std::string_view>> by_first;
  bool is_name = false;
  for (const std::string_view rest : rests) {
    if (rest.empty()) {
      is_name = true;
      continue;
    }
    const DecodedUtf8 step = decode_utf8(rest);
    by_first[step.code_point].push_back(rest.substr(step.length));
  }
  CharSet others(0, CharSet::kMaxCodePoint);
  std::vector<ExpressionPtr> parts;
  for (const auto& [first, further] : by_first) {
    others = others.without(CharSet(first));
    parts.push_back(sequence({string_char(CharSet(first)), rest_of_other_key(further)}));
  }
  parts.push_back(sequence({string_char(others), repeat(any_char(), 0), literal("\"")}));
  if (!is_name) parts.push_back(literal("\""));
  return choice(std::move(parts));
}

ExpressionPtr JsonRules::other_key(const std::vector<std::string_view>& names) {
  if (names.empty()) return string();
  return sequence({literal("\""), rest_of_other_key(names)});
}

}  // namespace millrace::grammar
