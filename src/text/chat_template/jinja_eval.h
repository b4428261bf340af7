#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat_template/jinja_ast.h"
#include "text/chat_template/jinja_value.h"

namespace millrace::text::jinja {

/// What a render may use. A template that wants more fails; it cannot hang or exhaust the server.
struct Limits {
  uint64_t steps = 20'000'000;
  size_t heap_bytes = size_t{256} << 20;
  size_t output_bytes = size_t{64} << 20;
  int depth = 400;  ///< of nested evaluation, macros included
};

/// The variables of one scope; scopes nest.
struct Frame : Object {
  explicit Frame(Frame* outer) : parent(outer) {}
  Frame* parent;
  std::vector<std::pair<Symbol, Value>> variables;

  void set(Symbol name, const Value& value);
};

/// The evaluated arguments of a call. After binding, `positional` has one value for each parameter of the builtin.
struct CallArguments {
  std::vector<Value> positional;
  std::vector<std::pair<Symbol, Value>> named;
};

class Evaluator;

/// A filter, test, method or function. `parameters` are its names, comma-separated, the first `required` of them
/// required; "*" takes what comes. Of filters and tests `self` is the operand.
struct Builtin {
  std::string_view name;
  int required;
  std::string_view parameters;
  Value (*call)(Evaluator& evaluator, const Value& self, CallArguments& arguments);
};

struct LoopObject : Object {
  size_t index0 = 0;
  int depth0 = 0;
  std::vector<Value> items;
  const Stmt* statement = nullptr;  ///< of a recursive loop
  Frame* frame = nullptr;           ///< where that loop stands
  mutable Value last_changed = Value::absent();
};

struct MacroObject : Object {
  const MacroNode* node = nullptr;
  Frame* closure = nullptr;
};

/// Runs one parsed template once. Made for a single render, on one thread. Throws TemplateError with a line.
class Evaluator {
 public:
  /// `heap` has the steps of `limits`. `context` holds the variables; `now` is what strftime_now formats.
  Evaluator(const TemplateTree& tree, Heap& heap, const DictObject& context, const std::tm& now, const Limits& limits);

  [[nodiscard]] std::string render();

  // Builtins make their values here.
  [[nodiscard]] Heap& heap() { return heap_; }
  [[nodiscard]] const std::tm& now() const { return now_; }
  [[nodiscard]] const Limits& limits() const { return limits_; }
  [[nodiscard]] Value string(std::string text) { return heap_.string(std::move(text)); }
  /// Accounts for work that grows with a value's size.
  void charge_steps(uint64_t count) { heap_.charge_steps(count); }
  /// Charges the steps of a search of `needle` in `text`, at its worst.
  void charge_search(std::string_view text, std::string_view needle) {
    charge_steps(text.size() / 64 + text.size() * needle.size() / 4096);
  }
  /// Charges the steps of a comparison of `item` with `count` others, which account for their own contents.
  void charge_comparisons(const Value& item, size_t count) {
    const size_t bytes = item.is(Kind::kString) ? item.string().size() : 0;
    charge_steps(count * (1 + bytes / 16) / 8);
  }
  [[nodiscard]] Value apply_filter(std::string_view name, const Value& operand, CallArguments arguments);
  [[nodiscard]] bool apply_test(std::string_view name, const Value& operand, CallArguments arguments);
  [[nodiscard]] Value call(const Value& callee, CallArguments arguments);
  /// Returns the items that a for loop would see; throws for what is not iterable.
  [[nodiscard]] std::vector<Value> iterate(const Value& value);

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  class DepthGuard;

  Flow exec(const Body& body, Frame& frame, std::string& out);
  Flow exec(const Stmt& stmt, Frame& frame, std::string& out);
  void exec_print(const Stmt& stmt, Frame& frame, std::string& out);
  void exec_for(const Stmt& stmt, const Value& iterable, Frame& frame, int depth0, std::string& out);
  void exec_set_block(const Stmt& stmt, Frame& frame);
  void exec_with(const Stmt& stmt, Frame& frame, std::string& out);
  void exec_call_block(const Stmt& stmt, Frame& frame, std::string& out);
  std::vector<Value> select_items(const Stmt& stmt, const Value& iterable, Frame& frame);
  /// Returns the text of a body in a scope of its own, through the filters of `filters`, if any.
  Value capture(const Body& body, const Expr* filters, Frame& frame);
  void assign(const Target& target, const Value& value, Frame& frame);
  void append(std::string& out, std::string_view text);

  Value eval(const Expr& expr, Frame& frame);
  [[nodiscard]] Value eval_name(Symbol name, const Frame& frame) const;
  Value eval_dict(const Expr& expr, Frame& frame);
  Value eval_slice(const Expr& expr, Frame& frame);
  Value eval_filter(const Expr& expr, const Value* block, Frame& frame);
  Value eval_compare(const Expr& expr, Frame& frame);
  Value eval_binary(const Expr& expr, Frame& frame);
  Value eval_logic(const Expr& expr, Frame& frame);
  std::vector<Value> eval_all(const std::vector<ExprPtr>& exprs, Frame& frame);
  CallArguments eval_arguments(const Arguments& arguments, Frame& frame);

  Value call_builtin(const Builtin& builtin, const Value& self, CallArguments& arguments);
  Value call_macro(const MacroObject& macro, CallArguments& arguments);
  Value call_loop(const LoopObject& loop, const CallArguments& arguments);

  const TemplateTree& tree_;
  Heap& heap_;
  const DictObject& context_;
  const std::tm& now_;
  const Limits& limits_;
  int depth_ = 0;
  int line_ = 0;
};

}  // namespace millrace::text::jinja
