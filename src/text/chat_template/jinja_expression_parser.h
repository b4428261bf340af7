#pragma once

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/chat_template/jinja_ast.h"
#include "text/chat_template/jinja_lexer.h"

namespace millrace::text::jinja {

/// Limits the nesting of expressions and statements together, and so the stack of parser and evaluator.
inline constexpr int kMaxNesting = 250;

/// The cursor over a template's tokens and the grammar of expressions; the parser of statements builds on it. Lives for
/// one parse, in jinja_parser.cc only.
class ExpressionParser {
 protected:
  ExpressionParser(std::vector<Token> tokens, TemplateTree& tree) : tokens_(std::move(tokens)), tree_(tree) {}

  /// Counts how deep the parser is; lives in every function that recurses.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxNesting) parser_.fail_here("nested too deeply");
    }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

  [[noreturn]] void fail_here(std::string message) const { throw TemplateError{current().line, std::move(message)}; }

  [[nodiscard]] const Token& current() const { return tokens_[at_]; }
  [[nodiscard]] const Token& peek_next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void skip() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool take_operator(std::string_view op) {
    if (!current().is_operator(op)) return false;
    skip();
    return true;
  }
  bool take_name(std::string_view name) {
    if (!current().is_name(name)) return false;
    skip();
    return true;
  }
  [[nodiscard]] std::string describe_current() const {
    switch (current().type) {
      case TokenType::kEnd: return "end of template";
      case TokenType::kPrintEnd: return "end of print statement";
      case TokenType::kBlockEnd: return "end of statement block";
      default: return "'" + current().text + "'";
    }
  }
  void expect_operator(std::string_view op) {
    if (!take_operator(op)) fail_here("expected '" + std::string(op) + "', got " + describe_current());
  }
  Symbol expect_name() {
    if (current().type != TokenType::kName) fail_here("expected a name, got " + describe_current());
    const Symbol name = intern(current().text);
    skip();
    return name;
  }
  void expect_block_end() {
    if (current().type != TokenType::kBlockEnd) fail_here("expected end of statement block, got " + describe_current());
    skip();
  }

  Symbol intern(const std::string& name) {
    auto& symbol = symbols_[name];
    if (symbol == nullptr) symbol = tree_.heap.make<StringObject>(name);
    return symbol;
  }

  ExprPtr make(ExprType type) {
    tree_.heap.charge(sizeof(Expr));
    auto expr = std::make_unique<Expr>();
    expr->type = type;
    expr->line = current().line;
    return expr;
  }
  template <class... Operands>
  ExprPtr make(ExprType type, int line, Operands&&... operands) {
    ExprPtr expr = make(type);
    expr->line = line;
    (expr->operands.push_back(std::forward<Operands>(operands)), ...);
    return expr;
  }
  ExprPtr constant(Value value) {
    ExprPtr expr = make(ExprType::kConstant);
    expr->constant = value;
    return expr;
  }

  // Statements.

  // Expressions, from the loosest binding to the tightest.

  /// Parses one expression, or several with commas between as a tuple.
  ExprPtr parse_tuple(bool with_condition) {
    const int line = current().line;
    const auto parse_one = [&] { return with_condition ? parse_expression() : parse_or(); };
    ExprPtr first = parse_one();
    if (!current().is_operator(",")) return first;
    ExprPtr tuple = make(ExprType::kTuple, line, std::move(first));
    while (take_operator(",")) {
      if (current().type == TokenType::kPrintEnd || current().type == TokenType::kBlockEnd) break;
      if (current().is_operator(")")) break;
      tuple->operands.push_back(parse_one());
    }
    return tuple;
  }

  ExprPtr parse_expression() {
    const Nesting nesting(*this);
    ExprPtr expr = parse_or();
    for (int length = 0; current().is_name("if"); ++length) {
      if (length > kMaxChain) fail_here("an expression has too many operators");
      const int line = current().line;
      skip();
      ExprPtr condition = parse_or();
      ExprPtr otherwise = take_name("else") ? parse_expression() : nullptr;
      expr = make(ExprType::kConditional, line, std::move(condition), std::move(expr), std::move(otherwise));
    }
    return expr;
  }

  ExprPtr parse_or() {
    ExprPtr left = parse_and();
    while (current().is_name("or")) left = chain(ExprType::kOr, std::move(left), [this] { return parse_and(); });
    return left;
  }

  ExprPtr parse_and() {
    ExprPtr left = parse_not();
    while (current().is_name("and")) left = chain(ExprType::kAnd, std::move(left), [this] { return parse_not(); });
    return left;
  }

  /// `and` and `or` chains are one node with many operands.
  template <class Next>
  ExprPtr chain(ExprType type, ExprPtr left, Next next) {
    const int line = current().line;
    const std::string word = current().text;
    ExprPtr expr = make(type, line, std::move(left));
    while (take_name(word)) expr->operands.push_back(next());
    return expr;
  }

  ExprPtr parse_not() {
    const Nesting nesting(*this);
    if (!current().is_name("not")) return parse_compare();
    const int line = current().line;
    skip();
    return make(ExprType::kNot, line, parse_not());
  }

  std::optional<Operator> take_comparison() {
    constexpr std::pair<std::string_view, Operator> kOperators[] = {
        {"==", Operator::kEqual},     {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
        {"<=", Operator::kLessEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterEqual}};
    for (const auto& [text, op] : kOperators) {
      if (take_operator(text)) return op;
    }
    if (take_name("in")) return Operator::kIn;
    if (!current().is_name("not") || !peek_next().is_name("in")) return std::nullopt;
    skip();
    skip();
    return Operator::kNotIn;
  }

  ExprPtr parse_compare() {
    const int line = current().line;
    ExprPtr left = parse_binary(0);
    std::optional<Operator> op = take_comparison();
    if (!op) return left;
    ExprPtr compare = make(ExprType::kCompare, line, std::move(left));
    for (; op; op = take_comparison()) {
      compare->operators.push_back(*op);
      compare->operands.push_back(parse_binary(0));
    }
    return compare;
  }

  /// Takes a binary operator of one level of precedence; the last level is the tightest.
  std::optional<Operator> take_binary(int level) {
    constexpr std::pair<std::string_view, Operator> kLevels[4][4] = {
        {{"+", Operator::kAdd}, {"-", Operator::kSubtract}},
        {{"~", Operator::kConcat}},
        {{"*", Operator::kMultiply},
         {"/", Operator::kDivide},
         {"//", Operator::kFloorDivide},
         {"%", Operator::kModulo}},
        {{"**", Operator::kPower}}};
    for (const auto& [text, op] : kLevels[level]) {
      if (!text.empty() && take_operator(text)) return op;
    }
    return std::nullopt;
  }

  ExprPtr parse_binary(int level) {
    if (level == 4) return parse_unary(true);
    ExprPtr left = parse_binary(level + 1);
    int length = 0;
    while (true) {
      const int line = current().line;
      const std::optional<Operator> op = take_binary(level);
      if (!op) return left;
      if (++length > kMaxOperands) fail_here("an expression has too many operators");
      // A chain of one level is one node: operators[i] stands before operands[i + 1], from left to right.
      if (length == 1) left = make(ExprType::kBinary, line, std::move(left));
      left->operators.push_back(*op);
      left->operands.push_back(parse_binary(level + 1));
    }
  }

  ExprPtr parse_unary(bool with_filters) {
    const Nesting nesting(*this);
    const int line = current().line;
    ExprPtr expr;
    if (take_operator("-")) {
      expr = make(ExprType::kNegate, line, parse_unary(false));
    } else if (take_operator("+")) {
      expr = make(ExprType::kPlus, line, parse_unary(false));
    } else {
      expr = parse_primary();
    }
    expr = parse_postfix(std::move(expr));
    return with_filters ? parse_filters(std::move(expr)) : std::move(expr);
  }

  ExprPtr parse_primary() {
    const Token& token = current();
    switch (token.type) {
      case TokenType::kName: return parse_name();
      case TokenType::kString: return parse_string();
      case TokenType::kInteger: return parse_integer();
      case TokenType::kFloat: {
        double value = 0;
        std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
        ExprPtr expr = constant(Value(value));
        skip();
        return expr;
      }
      default: break;
    }
    if (token.is_operator("(")) return parse_parentheses();
    if (token.is_operator("[")) return parse_list();
    if (token.is_operator("{")) return parse_dict();
    fail_here("unexpected " + describe_current());
  }

  ExprPtr parse_name() {
    const std::string& text = current().text;
    ExprPtr expr;
    if (text == "true" || text == "True") {
      expr = constant(Value(true));
    } else if (text == "false" || text == "False") {
      expr = constant(Value(false));
    } else if (text == "none" || text == "None") {
      expr = constant(Value());
    } else {
      expr = make(ExprType::kName);
      expr->name = intern(text);
    }
    skip();
    return expr;
  }

  ExprPtr parse_string() {
    ExprPtr expr = make(ExprType::kConstant);
    std::string text;
    for (; current().type == TokenType::kString; skip()) text += current().text;
    expr->constant = tree_.heap.string(std::move(text));
    return expr;
  }

  ExprPtr parse_integer() {
    std::string_view digits = current().text;
    int base = 10;
    if (digits.size() > 1 && digits[0] == '0' && digits[1] > '9') {
      base = digits[1] == 'x' ? 16 : digits[1] == 'o' ? 8 : 2;
      digits.remove_prefix(2);
    }
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (error != std::errc() || end != digits.data() + digits.size())
      fail_here("integer out of range: " + describe_current());
    ExprPtr expr = constant(Value(value));
    skip();
    return expr;
  }

  ExprPtr parse_parentheses() {
    const int line = current().line;
    skip();
    if (take_operator(")")) return make(ExprType::kTuple, line);
    ExprPtr expr = parse_tuple(true);
    expect_operator(")");
    return expr;
  }

  ExprPtr parse_list() {
    ExprPtr list = make(ExprType::kList);
    skip();
    while (!take_operator("]")) {
      if (!list->operands.empty()) expect_operator(",");
      if (take_operator("]")) break;
      list->operands.push_back(parse_expression());
    }
    return list;
  }

  ExprPtr parse_dict() {
    ExprPtr dict = make(ExprType::kDict);
    skip();
    while (!take_operator("}")) {
      if (!dict->operands.empty()) expect_operator(",");
      if (take_operator("}")) break;
      dict->operands.push_back(parse_expression());
      expect_operator(":");
      dict->operands.push_back(parse_expression());
    }
    return dict;
  }

  ExprPtr parse_postfix(ExprPtr expr) {
    for (int length = 0;; ++length) {
      if (length > kMaxChain) fail_here("an expression has too many operators");
      const int line = current().line;
      if (take_operator(".")) {
        expr = parse_after_dot(std::move(expr), line);
      } else if (take_operator("[")) {
        expr = parse_subscript(std::move(expr), line);
      } else if (current().is_operator("(")) {
        expr = parse_call(std::move(expr));
      } else {
        return expr;
      }
    }
  }

  ExprPtr parse_after_dot(ExprPtr owner, int line) {
    if (current().type == TokenType::kInteger) {
      return make(ExprType::kSubscript, line, std::move(owner), parse_integer());
    }
    ExprPtr expr = make(ExprType::kAttribute, line, std::move(owner));
    expr->name = expect_name();
    return expr;
  }

  ExprPtr parse_subscript(ExprPtr owner, int line) {
    const auto slice_part = [&]() -> ExprPtr {
      if (current().is_operator(":") || current().is_operator("]")) return nullptr;
      return parse_expression();
    };
    ExprPtr first = slice_part();
    if (!current().is_operator(":")) {
      if (!first) fail_here("expected a subscript, got " + describe_current());
      if (current().is_operator(",")) fail_here("subscripts with a comma are not supported");
      expect_operator("]");
      return make(ExprType::kSubscript, line, std::move(owner), std::move(first));
    }
    skip();
    ExprPtr second = slice_part();
    ExprPtr third = take_operator(":") ? slice_part() : nullptr;
    expect_operator("]");
    return make(ExprType::kSlice, line, std::move(owner), std::move(first), std::move(second), std::move(third));
  }

  Arguments parse_arguments() {
    Arguments arguments;
    expect_operator("(");
    bool first = true;
    while (!take_operator(")")) {
      if (!first) expect_operator(",");
      first = false;
      if (take_operator(")")) break;
      if (take_operator("*")) {
        if (arguments.star || arguments.double_star) fail_here("invalid syntax for function call expression");
        arguments.star = parse_expression();
      } else if (take_operator("**")) {
        if (arguments.double_star) fail_here("invalid syntax for function call expression");
        arguments.double_star = parse_expression();
      } else if (current().type == TokenType::kName && peek_next().is_operator("=")) {
        const Symbol name = expect_name();
        skip();
        arguments.named.emplace_back(name, parse_expression());
      } else {
        if (!arguments.named.empty() || arguments.star) fail_here("invalid syntax for function call expression");
        arguments.positional.push_back(parse_expression());
      }
    }
    return arguments;
  }

  ExprPtr parse_call(ExprPtr callee) {
    const int line = current().line;
    ExprPtr call = make(ExprType::kCall, line, std::move(callee));
    call->arguments = parse_arguments();
    return call;
  }

  /// Parses the filter whose name is current.
  ExprPtr parse_filter(ExprPtr operand) {
    ExprPtr filter = make(ExprType::kFilter, current().line, std::move(operand));
    filter->name = parse_dotted_name();
    if (current().is_operator("(")) filter->arguments = parse_arguments();
    return filter;
  }

  Symbol parse_dotted_name() {
    Symbol name = expect_name();
    while (take_operator(".")) name = intern(name->text + "." + expect_name()->text);
    return name;
  }

  ExprPtr parse_filters(ExprPtr expr) {
    for (int length = 0;; ++length) {
      if (length > kMaxChain) fail_here("an expression has too many operators");
      if (take_operator("|")) {
        expr = parse_filter(std::move(expr));
      } else if (expr && current().is_name("is")) {
        expr = parse_test(std::move(expr));
      } else if (expr && current().is_operator("(")) {
        expr = parse_call(std::move(expr));
      } else {
        return expr;
      }
    }
  }

  ExprPtr parse_test(ExprPtr operand) {
    const int line = current().line;
    skip();
    const bool negated = take_name("not");
    ExprPtr test = make(ExprType::kTest, line, std::move(operand));
    test->name = parse_dotted_name();
    const Token& next = current();
    const bool opens = next.is_operator("[") || next.is_operator("{");
    const bool is_word =
        next.type == TokenType::kName && !next.is_name("else") && !next.is_name("or") && !next.is_name("and");
    if (next.is_operator("(")) {
      test->arguments = parse_arguments();
    } else if (opens || is_word || next.type == TokenType::kString || next.type == TokenType::kInteger ||
               next.type == TokenType::kFloat) {
      if (next.is_name("is")) fail_here("You cannot chain multiple tests with is");
      test->arguments.positional.push_back(parse_postfix(parse_primary()));
    }
    return negated ? make(ExprType::kNot, line, std::move(test)) : std::move(test);
  }

  static constexpr int kMaxOperands = 1000;
  /// Each makes the tree one level deeper.
  static constexpr int kMaxChain = 20;

  std::vector<Token> tokens_;
  TemplateTree& tree_;
  size_t at_ = 0;
  int nesting_ = 0;
  std::unordered_map<std::string, Symbol> symbols_;
};

}  // namespace millrace::text::jinja
