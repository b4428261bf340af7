#include "text/chat_template/jinja_eval.h"

#include <algorithm>

#include "text/chat_template/jinja_builtins.h"
#include "text/chat_template/jinja_operators.h"

namespace millrace::text::jinja {

/// One level of nested evaluation; its destructor leaves it.
class Evaluator::DepthGuard {
 public:
  explicit DepthGuard(Evaluator& evaluator) : evaluator_(evaluator) {
    if (evaluator_.depth_ >= evaluator_.limits_.depth) fail("maximum recursion depth exceeded");
    ++evaluator_.depth_;
    evaluator_.charge_steps(1);
  }
  ~DepthGuard() { --evaluator_.depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  Evaluator& evaluator_;
};

void Frame::set(Symbol name, const Value& value) {
  for (auto& variable : variables) {
    if (variable.first == name) {
      variable.second = value;
      return;
    }
  }
  variables.emplace_back(name, value);
}

Evaluator::Evaluator(const TemplateTree& tree, Heap& heap, const DictObject& context, const std::tm& now,
                     const Limits& limits)
    : tree_(tree), heap_(heap), context_(context), now_(now), limits_(limits) {}

std::string Evaluator::render() {
  std::string out;
  try {
    exec(tree_.body, *heap_.make<Frame>(nullptr), out);
  } catch (TemplateError& error) {
    if (error.line == 0) error.line = line_;
    throw;
  }
  return out;
}

void Evaluator::append(std::string& out, std::string_view text) {
  if (out.size() + text.size() > limits_.output_bytes) fail("the template's output is longer than it may be");
  charge_steps(text.size() / 64);
  out += text;
}

Evaluator::Flow Evaluator::exec(const Body& body, Frame& frame, std::string& out) {
  const DepthGuard level(*this);
  for (const Stmt& stmt : body) {
    line_ = stmt.line;
    charge_steps(1);
    if (const Flow flow = exec(stmt, frame, out); flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::exec(const Stmt& stmt, Frame& frame, std::string& out) {
  switch (stmt.type) {
    case StmtType::kText: append(out, stmt.text); break;
    case StmtType::kPrint: exec_print(stmt, frame, out); break;
    case StmtType::kIf: return exec(is_true(eval(*stmt.expr, frame)) ? stmt.body : stmt.otherwise, frame, out);
    case StmtType::kFor: exec_for(stmt, eval(*stmt.expr, frame), frame, 0, out); break;
    case StmtType::kSet: assign(stmt.target, eval(*stmt.expr, frame), frame); break;
    case StmtType::kSetBlock: exec_set_block(stmt, frame); break;
    case StmtType::kMacro: {
      auto* macro = heap_.make<MacroObject>();
      macro->node = stmt.macro.get();
      macro->closure = &frame;
      frame.set(stmt.macro->name, Value(macro));
      break;
    }
    case StmtType::kCall: exec_call_block(stmt, frame, out); break;
    case StmtType::kFilterBlock: append(out, to_str(capture(stmt.body, stmt.expr.get(), frame))); break;
    case StmtType::kWith: exec_with(stmt, frame, out); break;
    case StmtType::kScope: return exec(stmt.body, *heap_.make<Frame>(&frame), out);
    case StmtType::kBreak: return Flow::kBreak;
    case StmtType::kContinue: return Flow::kContinue;
  }
  return Flow::kNormal;
}

void Evaluator::exec_print(const Stmt& stmt, Frame& frame, std::string& out) {
  const Value value = eval(*stmt.expr, frame);
  if (value.is(Kind::kString)) {
    append(out, value.string());
  } else {
    append(out, to_str(value));
  }
}

std::vector<Value> Evaluator::select_items(const Stmt& stmt, const Value& iterable, Frame& frame) {
  std::vector<Value> items = iterate(iterable);
  if (!stmt.condition) return items;
  std::vector<Value> selected;
  for (const Value& item : items) {
    Frame& scope = *heap_.make<Frame>(&frame);
    assign(stmt.target, item, scope);
    if (is_true(eval(*stmt.condition, scope))) selected.push_back(item);
  }
  return selected;
}

void Evaluator::exec_for(const Stmt& stmt, const Value& iterable, Frame& frame, int depth0, std::string& out) {
  auto* loop = heap_.make<LoopObject>();
  loop->items = select_items(stmt, iterable, frame);
  heap_.charge(loop->items.size() * sizeof(Value));
  loop->depth0 = depth0;
  loop->statement = stmt.recursive ? &stmt : nullptr;
  loop->frame = &frame;
  if (loop->items.empty()) {
    exec(stmt.otherwise, *heap_.make<Frame>(&frame), out);
    return;
  }
  for (; loop->index0 < loop->items.size(); ++loop->index0) {
    Frame& scope = *heap_.make<Frame>(&frame);
    scope.set(tree_.names.loop, Value(static_cast<const LoopObject*>(loop)));
    assign(stmt.target, loop->items[loop->index0], scope);
    if (exec(stmt.body, scope, out) == Flow::kBreak) break;
  }
}

Value Evaluator::capture(const Body& body, const Expr* filters, Frame& frame) {
  std::string text;
  exec(body, *heap_.make<Frame>(&frame), text);
  const Value captured = string(std::move(text));
  return filters == nullptr ? captured : eval_filter(*filters, &captured, frame);
}

void Evaluator::exec_set_block(const Stmt& stmt, Frame& frame) {
  assign(stmt.target, capture(stmt.body, stmt.expr.get(), frame), frame);
}

void Evaluator::exec_with(const Stmt& stmt, Frame& frame, std::string& out) {
  Frame& scope = *heap_.make<Frame>(&frame);
  for (const auto& [target, expr] : stmt.assignments) assign(target, eval(*expr, frame), scope);
  exec(stmt.body, scope, out);
}

void Evaluator::exec_call_block(const Stmt& stmt, Frame& frame, std::string& out) {
  auto* caller = heap_.make<MacroObject>();
  caller->node = stmt.macro.get();
  caller->closure = &frame;
  const Value callee = eval(*stmt.expr->operands[0], frame);
  CallArguments arguments = eval_arguments(stmt.expr->arguments, frame);
  arguments.named.emplace_back(stmt.macro->name, Value(caller));
  append(out, to_str(call(callee, std::move(arguments))));
}

void Evaluator::assign(const Target& target, const Value& value, Frame& frame) {
  if (target.name == nullptr) {
    const std::vector<Value> parts = iterate(value);
    if (parts.size() != target.parts.size()) {
      fail(parts.size() < target.parts.size() ? "not enough" : "too many", " values to unpack (expected ",
           std::to_string(target.parts.size()), ", got ", std::to_string(parts.size()), ")");
    }
    for (size_t i = 0; i < parts.size(); ++i) assign(target.parts[i], parts[i], frame);
    return;
  }
  heap_.charge(sizeof(Value) + sizeof(Symbol));
  if (target.attribute == nullptr) return frame.set(target.name, value);
  const Value owner = eval_name(target.name, frame);
  if (!owner.is(Kind::kNamespace)) fail("cannot assign attribute on non-namespace object");
  owner.entries().set(Value(target.attribute), value);
}

std::vector<Value> Evaluator::iterate(const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::kUndefined: break;
    case Kind::kList:
    case Kind::kTuple: items = value.items(); break;
    case Kind::kDict:
      for (const auto& entry : value.entries().entries) items.push_back(entry.first);
      break;
    case Kind::kString:
      heap_.charge(value.string().size() * sizeof(Value));
      for (std::string_view rest = value.string(); !rest.empty();) {
        size_t length = 1;
        while (length < rest.size() && (static_cast<unsigned char>(rest[length]) & 0xC0) == 0x80) ++length;
        items.push_back(string(std::string(rest.substr(0, length))));
        rest.remove_prefix(length);
      }
      break;
    default: fail("'", type_name(value.kind()), "' object is not iterable");
  }
  charge_steps(items.size() / 8);
  return items;
}

namespace {

/// Returns the result of a method of Markup, whose strings are Markup too.
Value as_markup(Heap& heap, const Value& value) {
  if (value.is(Kind::kString)) return heap.string(value.string(), true);
  if (!value.is_sequence()) return value;
  std::vector<Value> items;
  for (const Value& item : value.items()) items.push_back(as_markup(heap, item));
  return value.is(Kind::kList) ? heap.list(std::move(items)) : heap.tuple(std::move(items));
}

}  // namespace

Value Evaluator::call(const Value& callee, CallArguments arguments) {
  const DepthGuard level(*this);
  switch (callee.kind()) {
    case Kind::kFunction: return call_builtin(callee.function(), Value(), arguments);
    case Kind::kMethod: {
      const Value& self = callee.method().self;
      const Value result = call_builtin(*callee.method().method, self, arguments);
      return self.is_markup() ? as_markup(heap_, result) : result;
    }
    case Kind::kMacro: return call_macro(callee.macro(), arguments);
    case Kind::kLoop: return call_loop(callee.loop(), arguments);
    case Kind::kUndefined: fail(callee.undefined_message());
    default: fail("'", type_name(callee.kind()), "' object is not callable");
  }
}

Value Evaluator::call_builtin(const Builtin& builtin, const Value& self, CallArguments& arguments) {
  bind_arguments(builtin, arguments);
  return builtin.call(*this, self, arguments);
}

Value Evaluator::apply_filter(std::string_view name, const Value& operand, CallArguments arguments) {
  const Builtin* filter = find_filter(name);
  if (filter == nullptr) fail("No filter named '", name, "'.");
  return call_builtin(*filter, operand, arguments);
}

bool Evaluator::apply_test(std::string_view name, const Value& operand, CallArguments arguments) {
  const Builtin* test = find_test(name);
  if (test == nullptr) fail("No test named '", name, "'.");
  return is_true(call_builtin(*test, operand, arguments));
}

Value Evaluator::call_macro(const MacroObject& macro, CallArguments& arguments) {
  const MacroNode& node = *macro.node;
  Frame& scope = *heap_.make<Frame>(macro.closure);
  std::vector<Value> extra;
  for (size_t i = node.parameters.size(); i < arguments.positional.size(); ++i)
    extra.push_back(arguments.positional[i]);
  std::vector<std::pair<Symbol, Value>> named = std::move(arguments.named);
  const auto take_named = [&](std::string_view name) {
    const auto it =
        std::find_if(named.begin(), named.end(), [&](const auto& entry) { return entry.first->text == name; });
    if (it == named.end()) return Value::absent();
    const Value value = it->second;
    named.erase(it);
    return value;
  };
  for (size_t i = 0; i < node.parameters.size(); ++i) {
    const Parameter& parameter = node.parameters[i];
    Value value = i < arguments.positional.size() ? arguments.positional[i] : take_named(parameter.name->text);
    if (value.is(Kind::kAbsent)) {
      value = parameter.fallback ? eval(*parameter.fallback, scope) : Value::undefined(parameter.name);
    }
    scope.set(parameter.name, value);
  }
  const Value caller = take_named("caller");
  scope.set(tree_.names.caller, caller.is(Kind::kAbsent) ? Value::undefined(tree_.names.caller) : caller);
  scope.set(tree_.names.varargs, heap_.tuple(std::move(extra)));
  auto* rest = heap_.make<DictObject>(heap_);
  for (const auto& [name, value] : named) rest->set(Value(name), value);
  scope.set(tree_.names.kwargs, Value::dict(rest));
  const int line = line_;
  std::string out;
  exec(node.body, scope, out);
  line_ = line;
  return string(std::move(out));
}

Value Evaluator::call_loop(const LoopObject& loop, const CallArguments& arguments) {
  if (loop.statement == nullptr) fail("The loop must have the 'recursive' marker to be called recursively.");
  if (arguments.positional.size() != 1) fail("loop() takes one argument");
  std::string out;
  exec_for(*loop.statement, arguments.positional[0], *loop.frame, loop.depth0 + 1, out);
  return string(std::move(out));
}

Value Evaluator::eval(const Expr& expr, Frame& frame) {
  if (depth_ >= limits_.depth) fail("maximum recursion depth exceeded");
  charge_steps(1);
  ++depth_;
  struct Leave {
    int& depth;
    ~Leave() { --depth; }
  } leave{depth_};
  line_ = expr.line;
  switch (expr.type) {
    case ExprType::kConstant: return expr.constant;
    case ExprType::kName: return eval_name(expr.name, frame);
    case ExprType::kList: return heap_.list(eval_all(expr.operands, frame));
    case ExprType::kTuple: return heap_.tuple(eval_all(expr.operands, frame));
    case ExprType::kDict: return eval_dict(expr, frame);
    case ExprType::kAttribute: {
      const Value owner = eval(*expr.operands[0], frame);
      return attribute(*this, owner, expr.name);
    }
    case ExprType::kSubscript: {
      const Value owner = eval(*expr.operands[0], frame);
      return subscript(*this, owner, eval(*expr.operands[1], frame));
    }
    case ExprType::kSlice: return eval_slice(expr, frame);
    case ExprType::kCall: {
      const Value callee = eval(*expr.operands[0], frame);
      CallArguments arguments = eval_arguments(expr.arguments, frame);
      line_ = expr.line;
      return call(callee, std::move(arguments));
    }
    case ExprType::kFilter: return eval_filter(expr, nullptr, frame);
    case ExprType::kTest: {
      const Value operand = eval(*expr.operands[0], frame);
      return Value(apply_test(expr.name->text, operand, eval_arguments(expr.arguments, frame)));
    }
    case ExprType::kCompare: return eval_compare(expr, frame);
    case ExprType::kBinary: return eval_binary(expr, frame);
    default: return eval_logic(expr, frame);
  }
}

Value Evaluator::eval_logic(const Expr& expr, Frame& frame) {
  const Value first = eval(*expr.operands[0], frame);
  switch (expr.type) {
    case ExprType::kNot: return Value(!is_true(first));
    case ExprType::kNegate: return negative(*this, first);
    case ExprType::kPlus: return positive(first);
    case ExprType::kConditional:
      if (is_true(first)) return eval(*expr.operands[1], frame);
      return expr.operands[2] ? eval(*expr.operands[2], frame) : Value::undefined(nullptr);
    default: break;
  }
  const bool stops_at = expr.type == ExprType::kOr;
  Value value = first;
  for (size_t i = 1; i < expr.operands.size() && is_true(value) != stops_at; ++i) {
    value = eval(*expr.operands[i], frame);
  }
  return value;
}

Value Evaluator::eval_name(Symbol name, const Frame& frame) const {
  for (const Frame* scope = &frame; scope != nullptr; scope = scope->parent) {
    for (const auto& [symbol, value] : scope->variables) {
      if (symbol == name) return value;
    }
  }
  if (const Value* given = context_.find(name->text)) return *given;
  if (const Builtin* function = find_function(name->text)) return Value(function);
  return Value::undefined(name);
}

std::vector<Value> Evaluator::eval_all(const std::vector<ExprPtr>& exprs, Frame& frame) {
  std::vector<Value> values;
  values.reserve(exprs.size());
  for (const ExprPtr& expr : exprs) values.push_back(eval(*expr, frame));
  return values;
}

Value Evaluator::eval_dict(const Expr& expr, Frame& frame) {
  auto* dict = heap_.make<DictObject>(heap_);
  for (size_t i = 0; i < expr.operands.size(); i += 2) {
    const Value key = eval(*expr.operands[i], frame);
    dict->set(key, eval(*expr.operands[i + 1], frame));
  }
  heap_.charge(expr.operands.size() * sizeof(Value));
  return Value::dict(dict);
}

CallArguments Evaluator::eval_arguments(const Arguments& arguments, Frame& frame) {
  CallArguments result;
  result.positional = eval_all(arguments.positional, frame);
  for (const auto& [name, expr] : arguments.named) result.named.emplace_back(name, eval(*expr, frame));
  if (arguments.star) {
    const std::vector<Value> more = iterate(eval(*arguments.star, frame));
    result.positional.insert(result.positional.end(), more.begin(), more.end());
  }
  if (arguments.double_star) {
    const Value more = eval(*arguments.double_star, frame);
    if (!more.is(Kind::kDict)) fail("argument after ** must be a mapping, not ", type_name(more.kind()));
    for (const auto& [key, value] : more.entries().entries) {
      if (!key.is(Kind::kString)) fail("keywords must be strings");
      result.named.emplace_back(key.string_object(), value);
    }
  }
  return result;
}

Value Evaluator::eval_filter(const Expr& expr, const Value* block, Frame& frame) {
  // The innermost filter of a filter block has no operand: it takes the block's text.
  const Value operand = expr.operands[0] == nullptr ? *block
                        : block != nullptr && expr.operands[0]->type == ExprType::kFilter
                            ? eval_filter(*expr.operands[0], block, frame)
                            : eval(*expr.operands[0], frame);
  CallArguments arguments = eval_arguments(expr.arguments, frame);
  line_ = expr.line;
  return apply_filter(expr.name->text, operand, std::move(arguments));
}

Value Evaluator::eval_slice(const Expr& expr, Frame& frame) {
  const Value owner = eval(*expr.operands[0], frame);
  const auto part = [&](size_t i) { return expr.operands[i] ? eval(*expr.operands[i], frame) : Value(); };
  const Value start = part(1);
  const Value stop = part(2);
  return slice(*this, owner, {start, stop, part(3)});
}

Value Evaluator::eval_binary(const Expr& expr, Frame& frame) {
  Value left = eval(*expr.operands[0], frame);
  for (size_t i = 1; i < expr.operands.size(); ++i) {
    const Value right = eval(*expr.operands[i], frame);
    line_ = expr.line;
    left = binary(*this, expr.operators[i - 1], left, right);
  }
  return left;
}

Value Evaluator::eval_compare(const Expr& expr, Frame& frame) {
  Value left = eval(*expr.operands[0], frame);
  for (size_t i = 1; i < expr.operands.size(); ++i) {
    const Value right = eval(*expr.operands[i], frame);
    line_ = expr.line;
    if (!compare_values(*this, expr.operators[i - 1], left, right)) return Value(false);
    left = right;
  }
  return Value(true);
}

}  // namespace millrace::text::jinja
