#pragma once

#include "text/chat_template/jinja_eval.h"

/// Python's operators on Jinja values. Each accounts for its work on the evaluator, and throws TemplateError where
/// Python would raise.
namespace millrace::text::jinja {

/// The bounds of a slice; none stands for one that was left out.
struct SliceBounds {
  Value start;
  Value stop;
  Value step;
};

/// Applies an arithmetic operator, or `~`.
[[nodiscard]] Value binary(Evaluator& evaluator, Operator op, const Value& left, const Value& right);
[[nodiscard]] Value negative(Evaluator& evaluator, const Value& value);
[[nodiscard]] Value positive(const Value& value);
/// Applies a comparison, `in` or `not in`.
[[nodiscard]] bool compare_values(Evaluator& evaluator, Operator op, const Value& left, const Value& right);
[[nodiscard]] bool contains(Evaluator& evaluator, const Value& container, const Value& item);
/// Returns `owner.name`: an undefined value where there is none.
[[nodiscard]] Value attribute(Evaluator& evaluator, const Value& owner, Symbol name);
/// Returns `owner[key]`: an undefined value where there is none.
[[nodiscard]] Value subscript(Evaluator& evaluator, const Value& owner, const Value& key);
[[nodiscard]] Value slice(Evaluator& evaluator, const Value& owner, const SliceBounds& bounds);

}  // namespace millrace::text::jinja
