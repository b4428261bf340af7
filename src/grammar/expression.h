#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "grammar/char_set.h"

/// The syntax tree that every notation is read into: JSON schema, regular expression, EBNF, choices.
namespace millrace::grammar {

using RuleIndex = uint32_t;

struct Expression;
/// A node of a tree. Never null. Shared, because trees may have parts in common.
using ExpressionPtr = std::shared_ptr<const Expression>;

struct Expression {
  enum class Kind : uint8_t {
    kLiteral,    ///< `text`
    kChar,       ///< one of `chars`
    kSequence,   ///< all `parts`, in order; without parts the empty text
    kChoice,     ///< one of `parts`; without parts no text
    kRepeat,     ///< the only part, `min` to `max` times
    kReference,  ///< a rule of the Definition
  };
  Kind kind = Kind::kSequence;
  std::string text;  ///< bytes
  CharSet chars;
  std::vector<ExpressionPtr> parts;
  uint32_t min = 0;
  std::optional<uint32_t> max;  ///< without a value there is no bound
  RuleIndex rule = 0;
};

[[nodiscard]] ExpressionPtr literal(std::string text);
[[nodiscard]] ExpressionPtr one_of(CharSet chars);
[[nodiscard]] ExpressionPtr sequence(std::vector<ExpressionPtr> parts);
[[nodiscard]] ExpressionPtr choice(std::vector<ExpressionPtr> parts);
[[nodiscard]] ExpressionPtr repeat(ExpressionPtr part, uint32_t min, std::optional<uint32_t> max = {});
[[nodiscard]] ExpressionPtr optional(ExpressionPtr part);
[[nodiscard]] ExpressionPtr reference(RuleIndex rule);

/// A root expression and the rules that it may refer to by index. A rule may be referred to before it is defined.
struct Definition {
  struct Rule {
    std::string name;          ///< for messages
    ExpressionPtr expression;  ///< null until it is defined
  };
  std::vector<Rule> rules;
  ExpressionPtr root;
  std::string prefix;  ///< the beginning of every text, which the prompt already holds

  RuleIndex add(std::string name, ExpressionPtr expression = nullptr) {
    rules.push_back({std::move(name), std::move(expression)});
    return static_cast<RuleIndex>(rules.size() - 1);
  }
};

}  // namespace millrace::grammar
