#include <algorithm>
#include <cmath>

#include "base/utf8.h"
#include "text/chat_template/jinja_builtins.h"
#include "text/chat_template/jinja_operators.h"
#include "text/unicode.h"

// The tests of templates: `value is name(arguments)`.
namespace millrace::text::jinja {
namespace {

template <Kind... kinds>
Value is_kind(Evaluator&, const Value& self, CallArguments&) {
  return Value((self.is(kinds) || ...));
}

template <bool wanted>
Value is_bool(Evaluator&, const Value& self, CallArguments&) {
  return Value(self.is(Kind::kBool) && self.boolean() == wanted);
}

Value is_defined(Evaluator&, const Value& self, CallArguments&) {
  return Value(!self.is(Kind::kUndefined));
}
Value is_integer(Evaluator&, const Value& self, CallArguments&) {
  return Value(self.is(Kind::kInt) || self.is(Kind::kBigInt));
}
Value is_number(Evaluator&, const Value& self, CallArguments&) {
  return Value(self.is_number());
}

Value is_sequence(Evaluator&, const Value& self, CallArguments&) {
  return Value(self.is_sequence() || self.is(Kind::kString) || self.is(Kind::kDict) || self.is(Kind::kUndefined));
}

Value is_iterable(Evaluator& evaluator, const Value& self, CallArguments& arguments) {
  return Value(self.is(Kind::kLoop) || is_true(is_sequence(evaluator, self, arguments)));
}

Value is_callable(Evaluator&, const Value& self, CallArguments&) {
  return Value(self.is(Kind::kFunction) || self.is(Kind::kMethod) || self.is(Kind::kMacro) || self.is(Kind::kLoop));
}

template <Operator op>
Value compares(Evaluator& evaluator, const Value& self, CallArguments& arguments) {
  const Value& other = arguments.positional[0];
  evaluator.charge_comparisons(self, 1);
  switch (op) {
    case Operator::kEqual: return Value(equals(self, other));
    case Operator::kNotEqual: return Value(!equals(self, other));
    case Operator::kLess: return Value(compare(self, other, "<") < 0);
    case Operator::kLessEqual: return Value(compare(self, other, "<=") <= 0);
    case Operator::kGreater: return Value(compare(self, other, ">") > 0);
    default: return Value(compare(self, other, ">=") >= 0);
  }
}

bool is_multiple(Evaluator& evaluator, const Value& self, const Value& divisor) {
  const Value rest = binary(evaluator, Operator::kModulo, self, divisor);
  return rest.is_number() && rest.number() == 0;
}

Value is_even(Evaluator& evaluator, const Value& self, CallArguments&) {
  return Value(is_multiple(evaluator, self, Value(int64_t{2})));
}

Value is_odd(Evaluator& evaluator, const Value& self, CallArguments&) {
  return Value(equals(binary(evaluator, Operator::kModulo, self, Value(int64_t{2})), Value(int64_t{1})));
}

Value is_divisible(Evaluator& evaluator, const Value& self, CallArguments& arguments) {
  return Value(is_multiple(evaluator, self, arguments.positional[0]));
}

/// Python's islower and isupper: some cased character, and none of the other case.
template <bool lower>
Value has_case(Evaluator& evaluator, const Value& self, CallArguments&) {
  const std::string shown = to_str(self);
  evaluator.charge_steps(shown.size() / 8);
  bool some = false;
  for (std::string_view rest = shown; !rest.empty();) {
    const DecodedUtf8 step = decode_utf8(rest);
    if (lower ? is_upper(step.code_point) : is_lower(step.code_point)) return Value(false);
    some = some || is_cased(step.code_point);
    rest.remove_prefix(step.length);
  }
  return Value(some);
}

Value is_in(Evaluator& evaluator, const Value& self, CallArguments& arguments) {
  return Value(contains(evaluator, arguments.positional[0], self));
}

Value is_same(Evaluator& evaluator, const Value& self, CallArguments& arguments) {
  const Value& other = arguments.positional[0];
  evaluator.charge_comparisons(self, 1);
  if (self.kind() != other.kind()) return Value(false);
  const bool by_address = self.is_sequence() || self.is(Kind::kDict) || self.is(Kind::kNamespace);
  return Value(by_address ? self.address() == other.address() : equals(self, other));
}

Value is_escaped(Evaluator&, const Value& self, CallArguments&) {
  return Value(self.is_markup());
}

Value is_filter(Evaluator&, const Value& self, CallArguments&) {
  return Value(self.is(Kind::kString) && find_filter(self.string()) != nullptr);
}

Value is_test(Evaluator&, const Value& self, CallArguments&) {
  return Value(self.is(Kind::kString) && find_test(self.string()) != nullptr);
}

constexpr Builtin kTests[] = {
    {"defined", 0, "", is_defined},
    {"undefined", 0, "", is_kind<Kind::kUndefined>},
    {"none", 0, "", is_kind<Kind::kNone>},
    {"string", 0, "", is_kind<Kind::kString>},
    {"mapping", 0, "", is_kind<Kind::kDict>},
    {"boolean", 0, "", is_kind<Kind::kBool>},
    {"integer", 0, "", is_integer},
    {"float", 0, "", is_kind<Kind::kFloat>},
    {"number", 0, "", is_number},
    {"true", 0, "", is_bool<true>},
    {"false", 0, "", is_bool<false>},
    {"sequence", 0, "", is_sequence},
    {"iterable", 0, "", is_iterable},
    {"callable", 0, "", is_callable},
    {"even", 0, "", is_even},
    {"odd", 0, "", is_odd},
    {"divisibleby", 1, "num", is_divisible},
    {"lower", 0, "", has_case<true>},
    {"upper", 0, "", has_case<false>},
    {"in", 1, "seq", is_in},
    {"sameas", 1, "other", is_same},
    {"filter", 0, "", is_filter},
    {"test", 0, "", is_test},
    {"escaped", 0, "", is_escaped},
    {"eq", 1, "other", compares<Operator::kEqual>},
    {"equalto", 1, "other", compares<Operator::kEqual>},
    {"==", 1, "other", compares<Operator::kEqual>},
    {"ne", 1, "other", compares<Operator::kNotEqual>},
    {"!=", 1, "other", compares<Operator::kNotEqual>},
    {"lt", 1, "other", compares<Operator::kLess>},
    {"lessthan", 1, "other", compares<Operator::kLess>},
    {"<", 1, "other", compares<Operator::kLess>},
    {"le", 1, "other", compares<Operator::kLessEqual>},
    {"<=", 1, "other", compares<Operator::kLessEqual>},
    {"gt", 1, "other", compares<Operator::kGreater>},
    {"greaterthan", 1, "other", compares<Operator::kGreater>},
    {">", 1, "other", compares<Operator::kGreater>},
    {"ge", 1, "other", compares<Operator::kGreaterEqual>},
    {">=", 1, "other", compares<Operator::kGreaterEqual>},
};

}  // namespace

const Builtin* find_test(std::string_view name) {
  const auto* it = std::find_if(std::begin(kTests), std::end(kTests), [&](const Builtin& t) { return t.name == name; });
  return it == std::end(kTests) ? nullptr : it;
}

}  // namespace millrace::text::jinja
