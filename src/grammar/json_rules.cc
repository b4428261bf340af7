#include "grammar/json_rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"

namespace millrace::grammar {
namespace {

constexpr uint32_t kMaxIndentation = 32;
constexpr uint32_t kMaxDigits = 18;  // of a whole number: what 64 bits hold
constexpr uint32_t kMaxFractionDigits = 18;

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

/// Returns the characters that a string may have without an escape.
CharSet unescaped() {
  CharSet special(0, 0x1F);
  special.add(U'"', U'"');
  special.add(U'\\', U'\\');
  return special.complement();
}

ExpressionPtr digit_between(char low, char high) {
  return one_of(CharSet(static_cast<char32_t>(low), static_cast<char32_t>(high)));
}

ExpressionPtr some_fraction() {
  return sequence({literal("."), repeat(digit(), 1, kMaxFractionDigits)});
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

ExpressionPtr JsonRules::any_char() {
  ExpressionPtr escape = rule(escape_, "an escaped character", [] {
    return sequence({literal("\\"), choice({either_of("\"\\/bfnrt"), unicode_escape()})});
  });
  return choice({one_of(unescaped()), std::move(escape)});
}

ExpressionPtr JsonRules::string_char(const CharSet& chars) {
  if (chars.complement().empty()) return any_char();
  constexpr std::string_view kShort = "\"\\\b\f\n\r\t";
  constexpr std::string_view kSpellings = "\"\\bfnrt";
  std::vector<ExpressionPtr> spellings;
  uint64_t escaped = 0;
  const auto add = [&](char32_t c, const std::string& spelling) {
    if (!chars.contains(c)) return;
    spellings.push_back(literal(spelling));
    escaped |= uint64_t{1} << (c == U'"' ? 32 : c == U'\\' ? 33 : c);
  };
  for (size_t i = 0; i < kShort.size(); ++i) add(static_cast<char32_t>(kShort[i]), {'\\', kSpellings[i]});
  for (char32_t c = 0; c < 0x20; ++c) {
    if (kShort.find(static_cast<char>(c)) == std::string_view::npos) {
      add(c, fmt::format("\\u00{:02x}", static_cast<uint32_t>(c)));
    }
  }
  CharSet raw = chars.without(unescaped().complement());
  if (escaped == 0) return one_of(std::move(raw));
  // A rule, since there may be hundreds of states for each set of these characters.
  ExpressionPtr& escape = escapes_[escaped];
  if (escape == nullptr) escape = reference(definition_.add("some escaped characters", choice(std::move(spellings))));
  return raw.empty() ? escape : choice({one_of(std::move(raw)), escape});
}

ExpressionPtr JsonRules::string() {
  return rule(string_, "string", [this] { return sequence({literal("\""), repeat(any_char(), 0), literal("\"")}); });
}

ExpressionPtr JsonRules::string_of(uint32_t min, std::optional<uint32_t> max) {
  if (min == 0 && !max) return string();
  return sequence({literal("\""), repeated(any_char(), min, max), literal("\"")});
}

ExpressionPtr JsonRules::string_of(const TextLanguage& language) {
  const auto write = [this](const CharSet& chars) { return string_char(chars); };
  return sequence({literal("\""), language.expression(write), literal("\"")});
}

ExpressionPtr JsonRules::string_of(const Expression& expression) {
  return sequence({literal("\""), with_string_chars(expression), literal("\"")});
}

ExpressionPtr JsonRules::string_of(const Definition& source) {
  // All are there before the first is read, since each may refer to any.
  first_copy_ = static_cast<RuleIndex>(definition_.rules.size());
  for (const Definition::Rule& rule : source.rules) definition_.add(rule.name);
  for (size_t i = 0; i < source.rules.size(); ++i) {
    ExpressionPtr written = with_string_chars(*source.rules[i].expression);
    definition_.rules[first_copy_ + i].expression = std::move(written);
  }
  return string_of(*source.root);
}

ExpressionPtr JsonRules::with_string_chars(const Expression& expression) {
  if (expression.kind == Expression::Kind::kReference) return reference(first_copy_ + expression.rule);
  if (expression.kind == Expression::Kind::kLiteral) {
    std::string json;
    append_json_string(json, expression.text);
    return literal(std::string_view(json).substr(1, json.size() - 2));
  }
  if (expression.kind == Expression::Kind::kChar) return string_char(expression.chars);
  if (expression.kind == Expression::Kind::kRepeat) {
    return repeated(with_string_chars(*expression.parts.front()), expression.min, expression.max);
  }
  Expression written = expression;
  for (ExpressionPtr& part : written.parts) part = with_string_chars(*part);
  return std::make_shared<const Expression>(std::move(written));
}

ExpressionPtr JsonRules::repeated(const ExpressionPtr& part, uint32_t min, std::optional<uint32_t> max) {
  constexpr uint32_t kMaxSingles = 1024;
  constexpr uint32_t kBlock = 256;
  if (max.value_or(min) <= kMaxSingles) return repeat(part, min, max);
  const ExpressionPtr block = reference(definition_.add("a block of repeats", repeat(part, kBlock, kBlock)));
  std::vector<ExpressionPtr> parts(min / kBlock, block);
  parts.push_back(repeat(part, min % kBlock, min % kBlock));
  if (!max) {
    parts.push_back(repeat(part, 0));
    return sequence(std::move(parts));
  }
  // After each block there may be another, or the rest of fewer repeats.
  const uint32_t blocks = (*max - min) / kBlock;
  const ExpressionPtr less_than_block =
      reference(definition_.add("repeats", repeat(part, 0, std::min(kBlock - 1, *max - min))));
  NetworkBuilder network;
  uint32_t node = NetworkBuilder::kBegin;
  for (uint32_t i = 0; i < blocks; ++i) {
    network.add_edge(node, NetworkBuilder::kEnd, less_than_block);
    const uint32_t next = network.add_node();
    network.add_edge(node, next, block);
    node = next;
  }
  network.add_edge(node, NetworkBuilder::kEnd, repeat(part, 0, (*max - min) % kBlock));
  parts.push_back(std::move(network).build());
  return sequence(std::move(parts));
}

ExpressionPtr JsonRules::number() {
  return rule(number_, "number", [] {
    ExpressionPtr whole =
        choice({literal("0"), sequence({digit_between('1', '9'), repeat(digit(), 0, kMaxDigits - 1)})});
    // Readers refuse numbers beyond all doubles, so the exponent is below 200.
    ExpressionPtr exponent =
        sequence({either_of("eE"), optional(either_of("+-")), optional(literal("1")), repeat(digit(), 1, 2)});
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

ExpressionPtr JsonRules::quoted(std::string_view text) {
  std::string json;
  append_json_string(json, text);
  return literal(json);
}

}  // namespace millrace::grammar
