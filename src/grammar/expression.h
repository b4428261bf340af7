#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "grammar/char_set.h"

/// What texts are allowed, as a tree: what every notation (JSON schema, regular expression, EBNF) is read into.
namespace millrace::grammar {

using RuleIndex = uint32_t;

struct Expression;
/// Never null; shared, since trees may have parts in common.
using ExpressionPtr = std::shared_ptr<const Expression>;

struct Expression {
  enum class Kind : uint8_t {
    kLiteral,    ///< `text`
    kChar,       ///< one of `chars`
    kSequence,   ///< all `parts`, in order; none: the empty text
    kChoice,     ///< one of `parts`; none: no text at all
    kRepeat,     ///< the only part, `min` to `max` times
    kReference,  ///< a rule of the Definition
  };
  Kind kind = Kind::kSequence;
  std::string text;  ///< bytes
  CharSet chars;
  std::vector<ExpressionPtr> parts;
  uint32_t min = 0;
  std::optional<uint32_t> max;  ///< nothing: no bound
  RuleIndex rule = 0;
};

[[nodiscard]] ExpressionPtr literal(std::string text);
[[nodiscard]] ExpressionPtr one_of(CharSet chars);
[[nodiscard]] ExpressionPtr sequence(std::vector<ExpressionPtr> parts);
[[nodiscard]] ExpressionPtr choice(std::vector<ExpressionPtr> parts);
[[nodiscard]] ExpressionPtr repeat(ExpressionPtr part, uint32_t min, std::optional<uint32_t> max = {});
[[nodiscard]] ExpressionPtr optional(ExpressionPtr part);
[[nodiscard]] ExpressionPtr reference(RuleIndex rule);

/// What texts match: the root, which may refer to rules by number, also before their expressions are known.
struct Definition {
  struct Rule {
    std::string name;          ///< for messages
    ExpressionPtr expression;  ///< null until it is known
  };
  std::vector<Rule> rules;
  ExpressionPtr root;
  std::string prefix;  ///< what texts begin with, as it has been written by others

  RuleIndex add(std::string name, ExpressionPtr expression = nullptr) {
    rules.push_back({std::move(name), std::move(expression)});
    return static_cast<RuleIndex>(rules.size() - 1);
  }
};

}  // namespace millrace::grammar
