#include "text/chat_template/jinja_parser.h"

#include "text/chat_template/jinja_expression_parser.h"

namespace millrace::text::jinja {
namespace {

constexpr size_t kMaxSourceBytes = size_t{1} << 20;
constexpr size_t kMaxTreeBytes = size_t{64} << 20;

/// The grammar of statements.
class Parser : ExpressionParser {
 public:
  Parser(std::vector<Token> tokens, TemplateTree& tree) : ExpressionParser(std::move(tokens), tree) {}

  void parse() {
    tree_.names = {intern("loop"), intern("caller"), intern("varargs"), intern("kwargs")};
    tree_.body = parse_body({});
    if (current().type != TokenType::kEnd) fail_here("unexpected end tag");
  }

 private:
  [[nodiscard]] bool at_tag(std::initializer_list<std::string_view> names) const {
    if (current().type != TokenType::kBlockBegin || peek_next().type != TokenType::kName) return false;
    for (const std::string_view name : names) {
      if (peek_next().text == name) return true;
    }
    return false;
  }

  /// Parses up to one of the tags `ends`, whose name is then current, or up to the end of the template.
  Body parse_body(std::initializer_list<std::string_view> ends) {
    const Nesting nesting(*this);
    Body body;
    const int start_line = current().line;
    while (current().type != TokenType::kEnd) {
      if (at_tag(ends)) {
        skip();
        return body;
      }
      if (current().type == TokenType::kText) {
        body.push_back(statement(StmtType::kText));
        body.back().text = current().text;
        skip();
      } else if (current().type == TokenType::kPrintBegin) {
        skip();
        body.push_back(statement(StmtType::kPrint));
        body.back().expr = parse_tuple(true);
        if (current().type != TokenType::kPrintEnd)
          fail_here("expected end of print statement, got " + describe_current());
        skip();
      } else {
        skip();
        parse_statement(body);
      }
    }
    if (ends.size() > 0) {
      fail_here("unexpected end of template, looking for '" + std::string(*ends.begin()) + "' of the block at line " +
                std::to_string(start_line));
    }
    return body;
  }

  Stmt statement(StmtType type) {
    tree_.heap.charge(sizeof(Stmt));
    Stmt stmt{};
    stmt.type = type;
    stmt.line = current().line;
    return stmt;
  }

  void finish(std::string_view end) {
    if (!take_name(end)) fail_here("expected '" + std::string(end) + "', got " + describe_current());
    expect_block_end();
  }

  void parse_statement(Body& body) {
    if (current().type != TokenType::kName) fail_here("tag name expected");
    if (take_name("if")) return body.push_back(parse_if());
    if (take_name("for")) return body.push_back(parse_for());
    if (take_name("set")) return body.push_back(parse_set());
    if (take_name("macro")) return body.push_back(parse_macro());
    if (take_name("call")) return body.push_back(parse_call_block());
    if (take_name("filter")) return body.push_back(parse_filter_block());
    if (take_name("with")) return body.push_back(parse_with());
    if (take_name("generation")) return body.push_back(parse_generation());
    if (current().is_name("break") || current().is_name("continue")) {
      const bool is_break = current().is_name("break");
      if (loop_depth_ == 0) fail_here("'" + current().text + "' outside of a loop");
      body.push_back(statement(is_break ? StmtType::kBreak : StmtType::kContinue));
      skip();
      return expect_block_end();
    }
    fail_here("Encountered unknown tag '" + current().text + "'");
  }

  Stmt parse_if() {
    const Nesting nesting(*this);
    Stmt stmt = statement(StmtType::kIf);
    stmt.expr = parse_tuple(true);
    expect_block_end();
    stmt.body = parse_body({"endif", "elif", "else"});
    if (take_name("elif")) {
      stmt.otherwise.push_back(parse_if());
      return stmt;
    }
    if (take_name("else")) {
      expect_block_end();
      stmt.otherwise = parse_body({"endif"});
    }
    finish("endif");
    return stmt;
  }

  Stmt parse_for() {
    Stmt stmt = statement(StmtType::kFor);
    stmt.target = parse_targets();
    if (!take_name("in")) fail_here("expected 'in', got " + describe_current());
    stmt.expr = parse_tuple(false);
    if (take_name("if")) stmt.condition = parse_expression();
    stmt.recursive = take_name("recursive");
    expect_block_end();
    ++loop_depth_;
    stmt.body = parse_body({"endfor", "else"});
    --loop_depth_;
    if (take_name("else")) {
      expect_block_end();
      stmt.otherwise = parse_body({"endfor"});
    }
    finish("endfor");
    return stmt;
  }

  Target parse_one_target() {
    const Nesting nesting(*this);
    Target target;
    if (take_operator("(")) {
      target = parse_targets();
      expect_operator(")");
      return target;
    }
    target.name = expect_name();
    return target;
  }

  /// a  or  a, b  or  (a, b), c
  Target parse_targets() {
    Target first = parse_one_target();
    if (!current().is_operator(",")) return first;
    Target tuple;
    tuple.parts.push_back(std::move(first));
    while (take_operator(",")) {
      if (current().type != TokenType::kName && !current().is_operator("(")) break;
      if (current().is_name("in")) break;
      tuple.parts.push_back(parse_one_target());
    }
    return tuple;
  }

  Stmt parse_set() {
    Stmt stmt = statement(StmtType::kSet);
    stmt.target = parse_targets();
    if (stmt.target.name != nullptr && take_operator(".")) stmt.target.attribute = expect_name();
    if (take_operator("=")) {
      stmt.expr = parse_tuple(true);
      expect_block_end();
      return stmt;
    }
    stmt.type = StmtType::kSetBlock;
    stmt.expr = parse_filters(nullptr);
    expect_block_end();
    stmt.body = parse_nested({"endset"});
    finish("endset");
    return stmt;
  }

  /// Parses a body that break and continue do not leave.
  Body parse_nested(std::initializer_list<std::string_view> ends) {
    const int loops = std::exchange(loop_depth_, 0);
    Body body = parse_body(ends);
    loop_depth_ = loops;
    return body;
  }

  void parse_parameters(MacroNode& macro) {
    expect_operator("(");
    while (!take_operator(")")) {
      if (!macro.parameters.empty()) expect_operator(",");
      if (take_operator(")")) break;
      Parameter parameter{expect_name(), nullptr};
      if (take_operator("=")) {
        parameter.fallback = parse_expression();
      } else if (!macro.parameters.empty() && macro.parameters.back().fallback) {
        fail_here("non-default argument follows default argument");
      }
      macro.parameters.push_back(std::move(parameter));
    }
  }

  Stmt parse_macro() {
    Stmt stmt = statement(StmtType::kMacro);
    stmt.macro = std::make_unique<MacroNode>();
    stmt.macro->name = expect_name();
    parse_parameters(*stmt.macro);
    expect_block_end();
    stmt.macro->body = parse_nested({"endmacro"});
    finish("endmacro");
    return stmt;
  }

  Stmt parse_call_block() {
    Stmt stmt = statement(StmtType::kCall);
    stmt.macro = std::make_unique<MacroNode>();
    stmt.macro->name = intern("caller");
    if (current().is_operator("(")) parse_parameters(*stmt.macro);
    stmt.expr = parse_expression();
    if (stmt.expr->type != ExprType::kCall) fail_here("expected call");
    expect_block_end();
    stmt.macro->body = parse_nested({"endcall"});
    finish("endcall");
    return stmt;
  }

  Stmt parse_filter_block() {
    Stmt stmt = statement(StmtType::kFilterBlock);
    stmt.expr = parse_filters(parse_filter(nullptr));
    expect_block_end();
    stmt.body = parse_nested({"endfilter"});
    finish("endfilter");
    return stmt;
  }

  Stmt parse_with() {
    Stmt stmt = statement(StmtType::kWith);
    while (current().type != TokenType::kBlockEnd) {
      if (!stmt.assignments.empty()) expect_operator(",");
      Target target = parse_one_target();
      expect_operator("=");
      stmt.assignments.emplace_back(std::move(target), parse_expression());
    }
    expect_block_end();
    stmt.body = parse_body({"endwith"});
    finish("endwith");
    return stmt;
  }

  Stmt parse_generation() {
    Stmt stmt = statement(StmtType::kScope);
    expect_block_end();
    stmt.body = parse_body({"endgeneration"});
    finish("endgeneration");
    return stmt;
  }

  int loop_depth_ = 0;
};

}  // namespace

std::unique_ptr<TemplateTree> parse_template(std::string_view source) {
  if (source.size() > kMaxSourceBytes) throw TemplateError{1, "the template is longer than 1 MiB"};
  auto tree = std::make_unique<TemplateTree>(kMaxTreeBytes);
  Parser(tokenize(source), *tree).parse();
  return tree;
}

}  // namespace millrace::text::jinja
