#include "grammar/json_rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "grammar/regex_parser.h"
#include "grammar/uncut_values.h"
#include "grammar/until_tag.h"

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
  if (!notation_.has_space) return literal("");
  return rule(space_, "space", [] {
    ExpressionPtr indentation = repeat(either_of(" \t"), 0, kMaxIndentation);
    return choice({literal(""), literal(" "), sequence({literal("\n"), std::move(indentation)})});
  });
}

ExpressionPtr JsonRules::comma() {
  return sequence({literal(notation_.separator), space()});
}

ExpressionPtr JsonRules::value() {
  return rule(value_, "value", [this] {
    return choice({object(), array(), string(), number(), literal(notation_.true_word), literal(notation_.false_word),
                   literal(notation_.null_word)});
  });
}

ExpressionPtr JsonRules::members(const ExpressionPtr& member) {
  return optional(sequence({member, repeat(sequence({comma(), member}), 0), space()}));
}

ExpressionPtr JsonRules::object() {
  return rule(object_, "object", [this] {
    ExpressionPtr name = string();
    if (notation_.has_bare_keys()) name = choice({*parse_regex(notation_.bare_keys), name});
    ExpressionPtr member = sequence({std::move(name), literal(notation_.colon), space(), value()});
    return sequence({literal("{"), space(), members(member), literal("}")});
  });
}

ExpressionPtr JsonRules::array() {
  return rule(array_, "array", [this] { return sequence({literal("["), space(), members(value()), literal("]")}); });
}

ExpressionPtr JsonRules::any_arguments() {
  if (!notation_.has_keyword_arguments) return object();
  return arguments_of(members(sequence({*parse_regex(notation_.bare_keys), literal("="), value()})));
}

ExpressionPtr JsonRules::arguments_of(ExpressionPtr members) {
  if (notation_.has_keyword_arguments) return sequence({literal("("), std::move(members), literal(")")});
  return sequence({literal("{"), space(), std::move(members), literal("}")});
}

ExpressionPtr JsonRules::key(std::string_view name) {
  return sequence({literal(writer_.key(name)), literal(notation_.colon), space()});
}

ExpressionPtr JsonRules::key(const TextLanguage& names, ReadWork& work) {
  ExpressionPtr name = string_of(names);
  if (notation_.has_bare_keys()) {
    const TextLanguage bare = names.and_also(writer_.bare_keys(), work);
    if (!bare.is_empty()) name = choice({bare.expression([](const CharSet& chars) { return one_of(chars); }), name});
  }
  return sequence({std::move(name), literal(notation_.colon), space()});
}

ExpressionPtr JsonRules::any_char() {
  if (!notation_.has_escapes) return one_of(CharSet(0, CharSet::kMaxCodePoint));
  ExpressionPtr escape = rule(escape_, "an escaped character", [] {
    return sequence({literal("\\"), choice({either_of("\"\\/bfnrt"), unicode_escape()})});
  });
  return choice({one_of(unescaped()), std::move(escape)});
}

ExpressionPtr JsonRules::string_char(const CharSet& chars) {
  if (!notation_.has_escapes) return one_of(chars);
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

ExpressionPtr JsonRules::in_quotes(ExpressionPtr characters) const {
  if (notation_.quote.empty()) return characters;
  return sequence({literal(notation_.quote), std::move(characters), literal(notation_.quote)});
}

ExpressionPtr JsonRules::string() {
  return rule(string_, "string", [this] {
    const std::string_view quote = notation_.quote;
    if (!notation_.has_escapes) return sequence({literal(quote), until_tag({&quote, 1}, literal(""))});
    if (notation_.uncut == nullptr) return in_quotes(repeat(any_char(), 0));
    ExpressionPtr& shared = notation_.uncut->of_length(true, 0, std::nullopt);
    if (shared != nullptr) return shared;
    Definition source;
    JsonRules rules(source);
    source.root = rules.in_quotes(repeat(rules.any_char(), 0));
    ExpressionPtr made = *notation_.uncut->whole(source, definition_);
    return shared = reference(definition_.add("a string", std::move(made)));
  });
}

template <class Write>
ExpressionPtr JsonRules::uncut_string(const Write& write) {
  if (notation_.uncut == nullptr) return in_quotes(write(*this));
  JsonNotation notation = notation_;
  notation.uncut = nullptr;
  Definition source;
  JsonRules rules(source, notation);
  source.root = write(rules);
  if (notation_.has_escapes) {
    // A tag may end with the quotation mark.
    source.root = in_quotes(source.root);
    return notation_.uncut->json(source, definition_);
  }
  ExpressionPtr text = notation_.uncut->text(source, definition_);
  return text == nullptr ? nullptr : in_quotes(std::move(text));
}

template <class Write>
ExpressionPtr JsonRules::string_with(const Write& write) {
  ExpressionPtr uncut = uncut_string(write);
  return uncut != nullptr || notation_.quote.empty() ? uncut : string();
}

ExpressionPtr JsonRules::string_of(uint32_t min, std::optional<uint32_t> max) {
  if (min == 0 && !max && !notation_.quote.empty()) return string();
  const auto write = [&](JsonRules& rules) { return rules.repeated(rules.any_char(), min, max); };
  if (notation_.uncut == nullptr) return string_with(write);
  ExpressionPtr& shared = notation_.uncut->of_length(notation_.has_escapes, min, max);
  if (shared != nullptr) return shared;
  ExpressionPtr made = string_with(write);
  if (made != nullptr) shared = reference(definition_.add("a string", std::move(made)));
  return shared;
}

ExpressionPtr JsonRules::string_of(const TextLanguage& language) {
  return string_with([&](JsonRules& rules) {
    return language.expression([&rules](const CharSet& chars) { return rules.string_char(chars); });
  });
}

ExpressionPtr JsonRules::string_of(const Expression& expression) {
  return string_with([&](JsonRules& rules) { return rules.with_string_chars(expression); });
}

Result<ExpressionPtr> JsonRules::string_of(const Definition& source) {
  if (notation_.uncut == nullptr || notation_.has_escapes) {
    ExpressionPtr uncut = uncut_string([&](JsonRules& rules) { return rules.with_rules_of(source); });
    if (uncut != nullptr) return uncut;
    return make_error(ErrorCode::kInvalidArgument, "it has too many ways to avoid the tag that ends it");
  }
  auto text = notation_.uncut->whole(source, definition_);
  return text.has_error() ? std::move(text) : in_quotes(std::move(*text));
}

ExpressionPtr JsonRules::with_rules_of(const Definition& source) {
  // All are there before the first is read, since each may refer to any.
  first_copy_ = static_cast<RuleIndex>(definition_.rules.size());
  for (const Definition::Rule& rule : source.rules) definition_.add(rule.name);
  for (size_t i = 0; i < source.rules.size(); ++i) {
    ExpressionPtr written = with_string_chars(*source.rules[i].expression);
    definition_.rules[first_copy_ + i].expression = std::move(written);
  }
  return with_string_chars(*source.root);
}

ExpressionPtr JsonRules::with_string_chars(const Expression& expression) {
  if (expression.kind == Expression::Kind::kReference) return reference(first_copy_ + expression.rule);
  if (expression.kind == Expression::Kind::kLiteral && notation_.has_escapes) {
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

}  // namespace millrace::grammar
