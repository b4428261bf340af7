#include <algorithm>

#include "grammar/json_schema_formats.h"
#include "grammar/json_schema_parts.h"

namespace millrace::grammar {
namespace {

/// Steps to write one state of a language as an expression.
constexpr uint64_t kWriteSteps = 10;

/// Returns the number of characters that every match of an expression has. Nothing if they differ.
std::optional<uint64_t> fixed_length(const Expression& expression) {
  switch (expression.kind) {
    case Expression::Kind::kChar: return 1;
    case Expression::Kind::kSequence: {
      uint64_t sum = 0;
      for (const ExpressionPtr& part : expression.parts) {
        const auto length = fixed_length(*part);
        if (!length) return std::nullopt;
        sum += *length;
      }
      return sum;
    }
    case Expression::Kind::kChoice: {
      std::optional<uint64_t> common;
      for (const ExpressionPtr& part : expression.parts) {
        const auto length = fixed_length(*part);
        if (!length || (common && *common != *length)) return std::nullopt;
        common = length;
      }
      return common;
    }
    case Expression::Kind::kRepeat: {
      const auto length = fixed_length(*expression.parts.front());
      if (!length || expression.max != expression.min) return std::nullopt;
      return *length * expression.min;
    }
    case Expression::Kind::kLiteral:
    case Expression::Kind::kTagged:
    case Expression::Kind::kReference:
    case Expression::Kind::kNetwork:
    case Expression::Kind::kAssertion: break;
  }
  return std::nullopt;
}

ExpressionPtr with_length(const ExpressionPtr& expression, uint64_t min, std::optional<uint64_t> max);

/// Bounds each way of a choice between texts of different, but fixed lengths. Null if a sequence has no such part.
ExpressionPtr with_length_of_each_way(const Expression& sequence, uint64_t min, std::optional<uint64_t> max) {
  constexpr size_t kMaxWays = 8;
  for (size_t i = 0; i < sequence.parts.size(); ++i) {
    const Expression& part = *sequence.parts[i];
    const bool is_choice =
        part.kind == Expression::Kind::kChoice && part.parts.size() <= kMaxWays && !fixed_length(part) &&
        std::ranges::all_of(part.parts, [](const auto& way) { return fixed_length(*way).has_value(); });
    if (!is_choice) continue;
    std::vector<ExpressionPtr> ways;
    for (const ExpressionPtr& way : part.parts) {
      Expression chosen = sequence;
      chosen.parts[i] = way;
      ways.push_back(with_length(std::make_shared<const Expression>(std::move(chosen)), min, max));
      if (ways.back() == nullptr) return nullptr;
    }
    return choice(std::move(ways));
  }
  return nullptr;
}

/// Returns the expression with bounds on the number of characters, if one repetition of single characters has to take
/// them all. Null for any other shape.
ExpressionPtr with_length(const ExpressionPtr& expression, uint64_t min, std::optional<uint64_t> max) {
  if (expression->kind == Expression::Kind::kSequence) {
    if (ExpressionPtr ways = with_length_of_each_way(*expression, min, max)) return ways;
    uint64_t fixed = 0;
    std::optional<size_t> variable;
    for (size_t i = 0; i < expression->parts.size(); ++i) {
      const auto length = fixed_length(*expression->parts[i]);
      if (!length && variable) return nullptr;
      if (!length) variable = i;
      fixed += length.value_or(0);
    }
    if (!variable) return (fixed < min || (max && fixed > *max)) ? choice({}) : expression;
    if (max && *max < fixed) return choice({});
    Expression bounded = *expression;
    bounded.parts[*variable] = with_length(bounded.parts[*variable], min - std::min(min, fixed),
                                           max ? std::optional(*max - fixed) : std::nullopt);
    if (bounded.parts[*variable] == nullptr) return nullptr;
    return std::make_shared<const Expression>(std::move(bounded));
  }
  if (expression->kind != Expression::Kind::kRepeat || fixed_length(*expression->parts.front()) != 1u) return nullptr;
  const uint64_t least = std::max<uint64_t>(min, expression->min);
  std::optional<uint64_t> most = max;
  if (expression->max) most = std::min<uint64_t>(most.value_or(*expression->max), *expression->max);
  if (most && *most < least) return choice({});
  return repeat(expression->parts.front(), static_cast<uint32_t>(least),
                most ? std::optional(static_cast<uint32_t>(*most)) : std::nullopt);
}

/// Returns the pattern or format if it is the only condition but for the length. Null otherwise.
ExpressionPtr only_expression(const StringConditions& string, const std::string& path, SchemaParts& parts) {
  if (string.patterns.size() + string.formats.size() != 1 || !string.excluded.empty()) return nullptr;
  const bool is_pattern = !string.patterns.empty();
  const StringConditions::Text& text = is_pattern ? string.patterns[0] : string.formats[0];
  if (text.is_negated) return nullptr;
  const ExpressionPtr expression =
      is_pattern ? at_position(path, [&] { return parts.document.pattern(text.text); }) : format_expression(text.text);
  if (expression == nullptr || (string.min == 0 && !string.max)) return expression;
  return with_length(expression, string.min, string.max);
}

}  // namespace

TextLanguage string_language(const StringConditions& string, const std::string& path, SchemaParts& parts) {
  ReadWork& work = parts.document.work();
  TextLanguage language = TextLanguage::any();
  const auto add = [&](const StringConditions::Text& text, bool is_pattern) {
    language = at_position(text.path, [&] {
      const TextLanguage& found = is_pattern ? parts.document.pattern_language(text.text)
                                             : parts.document.format_language(text.text, text.is_negated);
      return language.and_also(text.is_negated ? found.complement(work) : found, work);
    });
  };
  for (const StringConditions::Text& pattern : string.patterns) add(pattern, true);
  for (const StringConditions::Text& format : string.formats) add(format, false);
  if (!string.excluded.empty())
    language = language.and_also(TextLanguage::exactly(string.excluded, work).complement(work), work);
  if (string.min > 0 || string.max) {
    if (string.max && *string.max < string.min) return TextLanguage::any().complement(work);
    // A part of the lengths is better than none: with fewer there are fewer states.
    for (std::optional<uint32_t> max = string.max;; max = *max / 2) {
      try {
        return language.and_also(TextLanguage::of_lengths(string.min, max), work);
      } catch (const ErrorException& failure) {
        constexpr uint32_t kMinLength = 64;
        const bool is_last = !max || *max / 2 < std::max(string.min, kMinLength) || work.is_exhausted();
        if (is_last) fail_at(path, failure.error().message);
      }
    }
  }
  return language;
}

ExpressionPtr string_expression(const StringConditions& string, const std::string& path, SchemaParts& parts,
                                JsonRules& rules) {
  if (string.max && *string.max < string.min) return choice({});
  if (string.patterns.empty() && string.formats.empty() && string.excluded.empty()) {
    return rules.string_of(string.min, string.max);
  }
  if (const ExpressionPtr only = only_expression(string, path, parts)) return rules.string_of(*only);
  const TextLanguage language = string_language(string, path, parts);
  at_position(path, [&] { parts.document.work().spend(language.state_count() * kWriteSteps); });
  return rules.string_of(language);
}

ExpressionPtr number_expression(NumberConditions number, TypeSet types, const std::string& path, SchemaParts& parts) {
  number.allows_whole = (types & kWholeType) != 0;
  number.allows_fraction = (types & kFractionType) != 0;
  const bool is_free = !number.low && !number.high && number.multiples.empty() && number.excluded.empty();
  if (is_free && number.allows_whole) return number.allows_fraction ? parts.rules.number() : parts.rules.integer();
  const TextLanguage numbers = at_position(path, [&] { return number_language(number, parts.document.work()); });
  at_position(path, [&] { parts.document.work().spend(numbers.state_count() * kWriteSteps); });
  return numbers.expression([](const CharSet& chars) { return one_of(chars); });
}

}  // namespace millrace::grammar
