#include "text/chat_template/jinja_operators.h"

#include <algorithm>
#include <cmath>

#include "text/chat_template/jinja_builtins.h"
#include "text/unicode.h"

namespace millrace::text::jinja {
namespace {

[[noreturn]] void fail_operand(std::string_view op, const Value& value) {
  if (value.is(Kind::kUndefined)) fail(value.undefined_message());
  fail("bad operand type for unary ", op, ": '", type_name(value.kind()), "'");
}

[[noreturn]] void fail_operands(std::string_view op, const Value& left, const Value& right) {
  for (const Value& side : {left, right}) {
    if (side.is(Kind::kUndefined)) fail(side.undefined_message());
  }
  fail("unsupported operand type(s) for ", op, ": '", type_name(left.kind()), "' and '", type_name(right.kind()), "'");
}

int64_t checked(bool overflow, int64_t value) {
  if (overflow) fail("integer overflow");
  return value;
}

int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) fail("integer division or modulo by zero");
  if (b == -1) return checked(a == INT64_MIN, a == INT64_MIN ? 0 : -a);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

int64_t floor_modulo(int64_t a, int64_t b) {
  if (b == 0) fail("integer division or modulo by zero");
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double float_modulo(double a, double b) {
  if (b == 0) fail("float modulo");
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  int64_t result = 1;
  while (exponent > 0) {
    if (exponent & 1) result = checked(__builtin_mul_overflow(result, base, &result), result);
    exponent >>= 1;
    if (exponent > 0) base = checked(__builtin_mul_overflow(base, base, &base), base);
  }
  return Value(result);
}

Value integer_arithmetic(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case Operator::kAdd: return Value(checked(__builtin_add_overflow(a, b, &result), result));
    case Operator::kSubtract: return Value(checked(__builtin_sub_overflow(a, b, &result), result));
    case Operator::kMultiply: return Value(checked(__builtin_mul_overflow(a, b, &result), result));
    case Operator::kFloorDivide: return Value(floor_divide(a, b));
    case Operator::kModulo: return Value(floor_modulo(a, b));
    case Operator::kPower: return integer_power(a, b);
    default: break;
  }
  if (b == 0) fail("division by zero");
  return Value(static_cast<double>(a) / static_cast<double>(b));
}

Value float_arithmetic(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd: return Value(a + b);
    case Operator::kSubtract: return Value(a - b);
    case Operator::kMultiply: return Value(a * b);
    case Operator::kPower: return Value(std::pow(a, b));
    case Operator::kModulo: return Value(float_modulo(a, b));
    default: break;
  }
  if (b == 0) fail(op == Operator::kFloorDivide ? "float floor division by zero" : "float division by zero");
  return Value(op == Operator::kFloorDivide ? std::floor(a / b) : a / b);
}

std::string_view spelling(Operator op) {
  constexpr std::string_view kSpellings[] = {"+",  "-",  "*", "/",  "//", "%",  "** or pow()", "~",
                                             "==", "!=", "<", "<=", ">",  ">=", "in",          "not in"};
  return kSpellings[static_cast<size_t>(op)];
}

/// Python's slice.indices: which elements of `size` the slice picks, in order.
std::vector<size_t> slice_indices(const SliceBounds& bounds, size_t size) {
  const auto part = [](const Value& value, int64_t fallback) {
    if (value.is(Kind::kNone)) return fallback;
    if (!value.is_integral()) fail("slice indices must be integers or None");
    return value.integer();
  };
  const int64_t by = part(bounds.step, 1);
  if (by == 0) fail("slice step cannot be zero");
  const auto length = static_cast<int64_t>(size);
  const int64_t low = by > 0 ? 0 : -1;
  const int64_t high = by > 0 ? length : length - 1;
  const auto clamp = [&](int64_t index) {
    if (index < 0) index = std::max(index, -length - 1) + length;
    return std::clamp(index, low, high);
  };
  const int64_t first = bounds.start.is(Kind::kNone) ? (by > 0 ? low : high) : clamp(part(bounds.start, 0));
  const int64_t last = bounds.stop.is(Kind::kNone) ? (by > 0 ? high : low) : clamp(part(bounds.stop, 0));
  std::vector<size_t> indices;
  const int64_t stride = std::clamp<int64_t>(by, -length - 1, length + 1);
  for (int64_t i = first; by > 0 ? i < last : i > last; i += stride) indices.push_back(static_cast<size_t>(i));
  return indices;
}

Value loop_attribute(const LoopObject& loop, std::string_view name, Symbol symbol) {
  const auto index0 = static_cast<int64_t>(loop.index0);
  const auto length = static_cast<int64_t>(loop.items.size());
  if (name == "index") return Value(index0 + 1);
  if (name == "index0") return Value(index0);
  if (name == "revindex") return Value(length - index0);
  if (name == "revindex0") return Value(length - index0 - 1);
  if (name == "first") return Value(index0 == 0);
  if (name == "last") return Value(index0 + 1 == length);
  if (name == "length") return Value(length);
  if (name == "depth") return Value(int64_t{loop.depth0} + 1);
  if (name == "depth0") return Value(int64_t{loop.depth0});
  if (name == "previtem" && index0 > 0) return loop.items[loop.index0 - 1];
  if (name == "nextitem" && index0 + 1 < length) return loop.items[loop.index0 + 1];
  return Value::undefined(symbol, Kind::kLoop);
}

}  // namespace

Value negative(Evaluator& evaluator, const Value& value) {
  if (value.is_integral()) return integer_arithmetic(Operator::kSubtract, 0, value.integer());
  if (value.is(Kind::kFloat)) return Value(-value.number());
  if (!value.is(Kind::kBigInt)) fail_operand("-", value);
  const std::string& digits = value.digits();
  return evaluator.heap().big_integer(digits.starts_with('-') ? digits.substr(1) : "-" + digits, -value.number());
}

Value positive(const Value& value) {
  if (value.is_integral()) return Value(value.integer());
  if (value.is(Kind::kFloat)) return Value(value.number());
  if (!value.is(Kind::kBigInt)) fail_operand("+", value);
  return value;
}

Value binary(Evaluator& evaluator, Operator op, const Value& left, const Value& right) {
  if (op == Operator::kConcat) {
    std::string text = to_str(left);
    return evaluator.string(text += to_str(right));
  }
  if (left.is_integral() && right.is_integral()) return integer_arithmetic(op, left.integer(), right.integer());
  const bool is_big = left.is(Kind::kBigInt) || right.is(Kind::kBigInt);
  const bool is_float = left.is(Kind::kFloat) || right.is(Kind::kFloat) || op == Operator::kDivide;
  if (is_big && !is_float && left.is_number() && right.is_number()) fail("integer overflow");
  if (left.is_number() && right.is_number()) return float_arithmetic(op, left.number(), right.number());
  if (op == Operator::kModulo && left.is(Kind::kString)) {
    return string_like(evaluator, left, percent_format(evaluator, left, right));
  }
  if (op == Operator::kAdd && left.is(Kind::kString) && right.is(Kind::kString)) {
    evaluator.heap().charge(left.string().size() + right.string().size());
    if (left.is_markup() || right.is_markup()) return evaluator.heap().string(escaped(left) + escaped(right), true);
    return evaluator.string(left.string() + right.string());
  }
  if (op == Operator::kAdd && left.is_sequence() && left.kind() == right.kind()) {
    std::vector<Value> items = left.items();
    items.insert(items.end(), right.items().begin(), right.items().end());
    return left.is(Kind::kList) ? evaluator.heap().list(std::move(items)) : evaluator.heap().tuple(std::move(items));
  }
  const bool left_repeats = right.is_integral() && (left.is(Kind::kString) || left.is_sequence());
  const bool right_repeats = left.is_integral() && (right.is(Kind::kString) || right.is_sequence());
  if (op != Operator::kMultiply || !(left_repeats || right_repeats)) fail_operands(spelling(op), left, right);
  const Value& repeated = left_repeats ? left : right;
  const auto count = static_cast<size_t>(std::max<int64_t>(0, left_repeats ? right.integer() : left.integer()));
  const size_t size = repeated.is(Kind::kString) ? repeated.string().size() : repeated.items().size() * sizeof(Value);
  if (size > 0 && count > evaluator.limits().heap_bytes / size) fail("the template uses more memory than it may");
  evaluator.heap().charge(size * count);
  evaluator.charge_steps(size * count / 64 + 1);
  if (repeated.is(Kind::kString)) {
    std::string out;
    for (size_t i = 0; size > 0 && i < count; ++i) out += repeated.string();
    return string_like(evaluator, repeated, std::move(out));
  }
  std::vector<Value> items;
  for (size_t i = 0; size > 0 && i < count; ++i) {
    items.insert(items.end(), repeated.items().begin(), repeated.items().end());
  }
  return repeated.is(Kind::kList) ? evaluator.heap().list(std::move(items)) : evaluator.heap().tuple(std::move(items));
}

Value slice(Evaluator& evaluator, const Value& owner, const SliceBounds& bounds) {
  if (owner.is(Kind::kUndefined)) fail(owner.undefined_message());
  if (owner.is_sequence()) {
    std::vector<Value> items;
    for (const size_t i : slice_indices(bounds, owner.items().size())) items.push_back(owner.items()[i]);
    evaluator.charge_steps(items.size() / 8);
    return owner.is(Kind::kList) ? evaluator.heap().list(std::move(items)) : evaluator.heap().tuple(std::move(items));
  }
  // The result is that of a subscript that does not fit.
  if (!owner.is(Kind::kString)) return Value::undefined(nullptr);
  const std::string_view text = owner.string();
  evaluator.charge_steps(text.size() / 8);
  std::vector<size_t> offsets;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) offsets.push_back(i);
  }
  const size_t count = offsets.size();
  offsets.push_back(text.size());
  std::string out;
  for (const size_t i : slice_indices(bounds, count)) {
    out.append(text.substr(offsets[i], offsets[i + 1] - offsets[i]));
  }
  return string_like(evaluator, owner, std::move(out));
}

Value attribute(Evaluator& evaluator, const Value& owner, Symbol name) {
  switch (owner.kind()) {
    case Kind::kUndefined: fail(owner.undefined_message());
    case Kind::kNamespace:
      if (const Value* value = owner.entries().find(name->text)) return *value;
      return Value::undefined(name, Kind::kNamespace);
    case Kind::kLoop:
      if (find_method(Kind::kLoop, name->text) == nullptr) return loop_attribute(owner.loop(), name->text, name);
      break;
    case Kind::kMacro:
      if (name->text == "name") return Value(owner.macro().node->name);
      break;
    default: break;
  }
  if (const Builtin* method = find_method(owner.kind(), name->text)) {
    return Value(static_cast<const MethodObject*>(evaluator.heap().make<MethodObject>(owner, method)));
  }
  if (owner.is(Kind::kDict)) {
    if (const Value* value = owner.entries().find(name->text)) return *value;
  }
  return Value::undefined(name, owner.kind());
}

Value subscript(Evaluator& evaluator, const Value& owner, const Value& key) {
  if (owner.is(Kind::kUndefined)) fail(owner.undefined_message());
  if (owner.is(Kind::kDict)) {
    if (const Value* value = owner.entries().find(key)) return *value;
  } else if (key.is_integral() && owner.is_sequence()) {
    const auto& items = owner.items();
    const auto size = static_cast<int64_t>(items.size());
    const int64_t index = key.integer() < 0 ? key.integer() + size : key.integer();
    if (index >= 0 && index < size) return items[static_cast<size_t>(index)];
  } else if (key.is_integral() && owner.is(Kind::kString)) {
    const std::string_view text = owner.string();
    evaluator.charge_steps(text.size() / 64);
    const auto size = static_cast<int64_t>(count_code_points(text));
    const int64_t index = key.integer() < 0 ? key.integer() + size : key.integer();
    if (index >= 0 && index < size) {
      const size_t begin = code_point_offset(text, static_cast<size_t>(index));
      const size_t length = code_point_offset(text.substr(begin), 1);
      return string_like(evaluator, owner, std::string(text.substr(begin, length)));
    }
  }
  if (key.is(Kind::kString)) return attribute(evaluator, owner, key.string_object());
  return Value::undefined(evaluator.string(to_str(key)).string_object(), owner.kind());
}

bool contains(Evaluator& evaluator, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      if (item.is(Kind::kUndefined)) fail(item.undefined_message());
      if (!item.is(Kind::kString)) {
        fail("'in <string>' requires string as left operand, not ", type_name(item.kind()));
      }
      evaluator.charge_search(container.string(), item.string());
      return container.string().find(item.string()) != std::string::npos;
    case Kind::kDict: return container.entries().find(item) != nullptr;
    case Kind::kList:
    case Kind::kTuple:
      evaluator.charge_comparisons(item, container.items().size());
      return std::any_of(container.items().begin(), container.items().end(),
                         [&](const Value& element) { return equals(element, item); });
    case Kind::kUndefined: return false;
    default: fail("argument of type '", type_name(container.kind()), "' is not iterable");
  }
}

bool compare_values(Evaluator& evaluator, Operator op, const Value& left, const Value& right) {
  evaluator.charge_comparisons(left, 1);
  switch (op) {
    case Operator::kEqual: return equals(left, right);
    case Operator::kNotEqual: return !equals(left, right);
    case Operator::kLess: return compare(left, right, "<") < 0;
    case Operator::kLessEqual: return compare(left, right, "<=") <= 0;
    case Operator::kGreater: return compare(left, right, ">") > 0;
    case Operator::kGreaterEqual: return compare(left, right, ">=") >= 0;
    case Operator::kIn: return contains(evaluator, right, left);
    default: return !contains(evaluator, right, left);
  }
}

}  // namespace millrace::text::jinja
