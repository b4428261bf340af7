#include "grammar/rule_parser.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace millrace::grammar {
namespace {

constexpr uint32_t kMaxGroupDepth = 100;

}  // namespace

void RuleParser::read_statements() {
  for (skip_space(true); !cursor_.at_end(); skip_space(true)) {
    read_statement();
    skip_space(false);
    if (!cursor_.at_end() && cursor_.peek() != '\n') cursor_.fail("wanted the end of the line");
  }
  for (const auto& [name, rule] : by_name_) {
    if (definition_.rules[rule].expression == nullptr) {
      cursor_.fail(fmt::format("nothing defines '{}'", shown_name(name)));
    }
  }
}

RuleIndex RuleParser::rule_named(std::string_view name) {
  const auto [entry, is_new] = by_name_.try_emplace(std::string(name), 0);
  if (is_new) entry->second = definition_.add(std::string(shown_name(name)));
  return entry->second;
}

void RuleParser::define(std::string_view name, ExpressionPtr expression) {
  ExpressionPtr& target = definition_.rules[rule_named(name)].expression;
  if (target != nullptr) cursor_.fail(fmt::format("'{}' is defined twice", shown_name(name)));
  target = std::move(expression);
}

void RuleParser::skip_space(bool over_lines) {
  for (;;) {
    const char c = cursor_.peek();
    const auto begins = [this](std::string_view comment) { return cursor_.rest().starts_with(comment); };
    if (std::ranges::any_of(notation_.comments, begins)) {
      while (!cursor_.at_end() && cursor_.peek() != '\n') cursor_.skip();
    } else if (c == ' ' || c == '\t' || c == '\r' || (over_lines && c == '\n')) {
      cursor_.skip();
    } else {
      return;
    }
  }
}

bool RuleParser::take_after_space(std::string_view word, bool over_lines) {
  const TextCursor here = cursor_;
  skip_space(over_lines);
  if (cursor_.take(word)) return true;
  cursor_ = here;
  return false;
}

bool RuleParser::is_name_char(char c) const {
  return is_alphanumeric(c) || notation_.name_marks.find(c) != std::string_view::npos;
}

std::string_view RuleParser::take_name() {
  const std::string_view rest = cursor_.rest();
  const auto* const end = std::ranges::find_if_not(rest, [this](char c) { return is_name_char(c); });
  const auto length = static_cast<size_t>(end - rest.begin());
  cursor_.skip(length);
  return rest.substr(0, length);
}

ExpressionPtr RuleParser::read_alternatives() {
  std::vector<ExpressionPtr> alternatives = {read_alternative()};
  // One of the next lines may begin with `|`.
  while (take_after_space("|", true)) {
    skip_space(true);
    alternatives.push_back(read_alternative());
  }
  return choice(std::move(alternatives));
}

ExpressionPtr RuleParser::read_alternative() {
  constexpr std::string_view kEnds = "|)]\n";
  std::vector<ExpressionPtr> terms;
  for (;; skip_space(nesting_ > 0)) {
    const bool is_end = kEnds.find(cursor_.peek()) != std::string_view::npos;
    if (cursor_.at_end() || is_end || cursor_.rest().starts_with("->")) break;
    terms.push_back(read_repeated());
  }
  end_alternative();
  return sequence(std::move(terms));
}

ExpressionPtr RuleParser::read_repeated() {
  ExpressionPtr term = read_term();
  for (uint32_t quantifiers = 0; const auto counts = read_quantifier(); ++quantifiers) {
    if (quantifiers == kMaxQuantifiers) cursor_.fail("too many quantifiers in a row");
    term = repeat(std::move(term), counts->min, counts->max);
  }
  return term;
}

ExpressionPtr RuleParser::read_term() {
  if (cursor_.take("(")) return read_group(")");
  if (ExpressionPtr own = read_own_term()) return own;
  const std::string_view name = take_name();
  if (name.empty()) cursor_.fail(fmt::format("wanted {}", notation_.wanted_term));
  return use_of(name);
}

ExpressionPtr RuleParser::read_group(std::string_view close) {
  if (++nesting_ > kMaxGroupDepth) cursor_.fail("groups are nested too deeply");
  skip_space(true);
  ExpressionPtr group = read_alternatives();
  skip_space(true);
  if (!cursor_.take(close)) cursor_.fail(fmt::format("wanted '{}'", close));
  --nesting_;
  return group;
}

std::string RuleParser::read_quoted() {
  std::string text;
  while (!cursor_.take("\"")) {
    if (cursor_.at_end() || cursor_.peek() == '\n') cursor_.fail("a literal has no end");
    append_utf8(text, read_char());
  }
  return text;
}

char32_t RuleParser::read_char() {
  if (!cursor_.take("\\")) return cursor_.take_char();
  const char32_t c = cursor_.take_char();
  if (c == U'x') return cursor_.take_hex(2);
  if (c == U'u') return cursor_.take_hex(4);
  if (c == U'U') return cursor_.take_hex(8);
  const bool is_known = c < 0x80 && notation_.escapes.find(static_cast<char>(c)) != std::string_view::npos;
  if (!is_known) cursor_.fail("this escape is not supported");
  switch (c) {
    case U'n': return U'\n';
    case U'r': return U'\r';
    case U't': return U'\t';
    case U'f': return U'\f';
    case U'v': return U'\v';
    default: return c;
  }
}

}  // namespace millrace::grammar
