#include "grammar/copy_rules.h"

#include <unordered_map>
#include <utility>
#include <vector>

namespace millrace::grammar {
namespace {

/// Copies expressions and notes the rules that they refer to. Lives for one call of copy_rules().
class RuleCopier {
 public:
  RuleCopier(const Definition& source, Definition& target, std::map<RuleIndex, RuleIndex>& copies)
      : source_(source), target_(target), copies_(copies) {}

  ExpressionPtr copy_all(const ExpressionPtr& expression) {
    ExpressionPtr root = copy(expression);
    while (!open_.empty()) {
      const RuleIndex rule = open_.back();
      open_.pop_back();
      ExpressionPtr written = copy(source_.rules[rule].expression);
      target_.rules[copies_.at(rule)].expression = std::move(written);
    }
    return root;
  }

 private:
  ExpressionPtr copy(const ExpressionPtr& expression) {
    if (expression->kind == Expression::Kind::kReference) return reference(copy_of(expression->rule));
    if (expression->parts.empty()) return expression;
    // Parts in common stay so: an automaton counts the repeats of one part once.
    if (const auto known = written_.find(expression.get()); known != written_.end()) return known->second;
    std::vector<ExpressionPtr> parts;
    for (const ExpressionPtr& part : expression->parts) parts.push_back(copy(part));
    ExpressionPtr copied = expression;
    if (parts != expression->parts) {
      Expression written = *expression;
      written.parts = std::move(parts);
      copied = std::make_shared<const Expression>(std::move(written));
    }
    return written_[expression.get()] = std::move(copied);
  }

  RuleIndex copy_of(RuleIndex rule) {
    const auto [entry, is_new] = copies_.try_emplace(rule, 0);
    if (is_new) {
      entry->second = target_.add(source_.rules[rule].name);
      open_.push_back(rule);
    }
    return entry->second;
  }

  const Definition& source_;
  Definition& target_;
  std::map<RuleIndex, RuleIndex>& copies_;
  std::unordered_map<const Expression*, ExpressionPtr> written_;
  std::vector<RuleIndex> open_;  // copies whose rules have no expression yet
};

}  // namespace

ExpressionPtr copy_rules(const Definition& source, const ExpressionPtr& expression, Definition& target,
                         std::map<RuleIndex, RuleIndex>& copies) {
  return RuleCopier(source, target, copies).copy_all(expression);
}

}  // namespace millrace::grammar
