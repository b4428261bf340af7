#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/chat_template/jinja_value.h"

/// The tree of a parsed template. Built once by the parser, then only read.
namespace millrace::text::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprType {
  kConstant,
  kName,
  kList,
  kTuple,
  kDict,       ///< operands: key, value, key, value
  kAttribute,  ///< operands[0].name
  kSubscript,  ///< operands[0][operands[1]]
  kSlice,      ///< operands[0][a:b:c], the parts of which may be null
  kCall,       ///< operands[0](...)
  kFilter,     ///< operands[0] | name(...); the operand is null for the body of a filter block
  kTest,       ///< operands[0] is name(...)
  kNot,
  kNegate,
  kPlus,
  kAnd,
  kOr,
  kConditional,  ///< operands: condition, then, else or null
  kBinary,       ///< + - * / // % ** ~
  kCompare,      ///< a < b < c: operators[i] stands before operands[i + 1]
};

enum class Operator {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kConcat,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

/// The arguments of a call, a filter or a test.
struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<Symbol, ExprPtr>> named;
  ExprPtr star;         ///< *args
  ExprPtr double_star;  ///< **kwargs
};

struct Expr {
  ExprType type;
  int line;
  Value constant;
  Symbol name = nullptr;
  std::vector<ExprPtr> operands;
  std::vector<Operator> operators;
  Arguments arguments;
};

/// What a `set` or `for` assigns to: a name, `name.attribute` of a namespace, or a tuple of targets.
struct Target {
  Symbol name = nullptr;
  Symbol attribute = nullptr;
  std::vector<Target> parts;
};

struct Stmt;
using Body = std::vector<Stmt>;

struct Parameter {
  Symbol name;
  ExprPtr fallback;  ///< null: undefined when not given
};

/// A macro, or the body of a call block.
struct MacroNode {
  Symbol name = nullptr;
  std::vector<Parameter> parameters;
  Body body;
};

enum class StmtType {
  kText,
  kPrint,
  kIf,        ///< expr, body, otherwise
  kFor,       ///< target in expr if condition, body, otherwise
  kSet,       ///< target = expr
  kSetBlock,  ///< target = body | expr (a filter chain, or null)
  kMacro,
  kCall,         ///< expr is the call, macro its caller
  kFilterBlock,  ///< body | expr
  kWith,         ///< assignments, body
  kScope,        ///< body on its own (generation)
  kBreak,
  kContinue,
};

struct Stmt {
  StmtType type;
  int line;
  std::string text;
  ExprPtr expr;
  ExprPtr condition;
  bool recursive = false;
  Target target;
  Body body;
  Body otherwise;
  std::vector<std::pair<Target, ExprPtr>> assignments;
  std::unique_ptr<MacroNode> macro;
};

/// Names that Jinja itself gives a meaning.
struct SpecialNames {
  Symbol loop = nullptr;
  Symbol caller = nullptr;
  Symbol varargs = nullptr;
  Symbol kwargs = nullptr;
};

/// A compiled template: its tree, and the heap of its names and constants.
struct TemplateTree {
  explicit TemplateTree(size_t heap_bytes) : heap(heap_bytes) {}
  Heap heap;
  Body body;
  SpecialNames names;
};

}  // namespace millrace::text::jinja
