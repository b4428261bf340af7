#include "grammar/expression.h"

#include <utility>

namespace millrace::grammar {

ExpressionPtr literal(std::string_view text) {
  Expression expression{.kind = Expression::Kind::kLiteral};
  expression.text = text;
  return std::make_shared<const Expression>(std::move(expression));
}

ExpressionPtr tagged(std::string_view text) {
  Expression expression{.kind = Expression::Kind::kTagged};
  expression.text = text;
  return std::make_shared<const Expression>(std::move(expression));
}

ExpressionPtr one_of(CharSet chars) {
  Expression expression{.kind = Expression::Kind::kChar};
  expression.chars = std::move(chars);
  return std::make_shared<const Expression>(std::move(expression));
}

ExpressionPtr sequence(std::vector<ExpressionPtr> parts) {
  if (parts.size() == 1) return parts.front();
  Expression expression{.kind = Expression::Kind::kSequence};
  expression.parts = std::move(parts);
  return std::make_shared<const Expression>(std::move(expression));
}

ExpressionPtr choice(std::vector<ExpressionPtr> parts) {
  if (parts.size() == 1) return parts.front();
  Expression expression{.kind = Expression::Kind::kChoice};
  expression.parts = std::move(parts);
  return std::make_shared<const Expression>(std::move(expression));
}

ExpressionPtr repeat(ExpressionPtr part, uint32_t min, std::optional<uint32_t> max) {
  if (min == 1 && max == 1u) return part;
  Expression expression{.kind = Expression::Kind::kRepeat};
  expression.parts.push_back(std::move(part));
  expression.min = min;
  expression.max = max;
  return std::make_shared<const Expression>(std::move(expression));
}

ExpressionPtr optional(ExpressionPtr part) {
  return repeat(std::move(part), 0, 1);
}

ExpressionPtr reference(RuleIndex rule) {
  Expression expression{.kind = Expression::Kind::kReference};
  expression.rule = rule;
  return std::make_shared<const Expression>(std::move(expression));
}

ExpressionPtr assertion(Expression::Assertion assertion) {
  Expression expression{.kind = Expression::Kind::kAssertion};
  expression.assertion = assertion;
  return std::make_shared<const Expression>(std::move(expression));
}

void NetworkBuilder::add_edge(uint32_t from, uint32_t to, const ExpressionPtr& part) {
  const auto [entry, is_new] = parts_.try_emplace(part.get(), static_cast<uint32_t>(network_.parts.size()));
  if (is_new) network_.parts.push_back(part);
  network_.edges.push_back({from, to, entry->second});
}

ExpressionPtr NetworkBuilder::build() && {
  return std::make_shared<const Expression>(std::move(network_));
}

}  // namespace millrace::grammar
