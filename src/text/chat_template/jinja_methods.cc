#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "text/chat_template/jinja_builtins.h"

// The methods of list, dict, numbers and loop that templates may call.
namespace millrace::text::jinja {
namespace {

using Args = CallArguments;

Value list_append(Evaluator& evaluator, const Value& self, Args& args) {
  evaluator.heap().charge(sizeof(Value));
  self.items().push_back(args.positional[0]);
  return Value();
}

Value list_extend(Evaluator& evaluator, const Value& self, Args& args) {
  const std::vector<Value> more = evaluator.iterate(args.positional[0]);
  evaluator.heap().charge(more.size() * sizeof(Value));
  self.items().insert(self.items().end(), more.begin(), more.end());
  return Value();
}

Value list_insert(Evaluator& evaluator, const Value& self, Args& args) {
  auto& items = self.items();
  evaluator.heap().charge(sizeof(Value));
  evaluator.charge_steps(items.size() / 8);
  const auto size = static_cast<int64_t>(items.size());
  int64_t index = int_argument(args.positional[0], 0);
  if (index < 0) index = std::max<int64_t>(0, index + size);
  items.insert(items.begin() + std::min(index, size), args.positional[1]);
  return Value();
}

Value list_pop(Evaluator& evaluator, const Value& self, Args& args) {
  auto& items = self.items();
  evaluator.charge_steps(items.size() / 8);
  const auto size = static_cast<int64_t>(items.size());
  int64_t index = int_argument(args.positional[0], -1);
  if (index < 0) index += size;
  if (index < 0 || index >= size) fail(size == 0 ? "pop from empty list" : "pop index out of range");
  const Value popped = items[static_cast<size_t>(index)];
  items.erase(items.begin() + index);
  return popped;
}

Value list_index(Evaluator& evaluator, const Value& self, Args& args) {
  const auto& items = self.items();
  evaluator.charge_comparisons(args.positional[0], 8 * items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    if (equals(items[i], args.positional[0])) return Value(static_cast<int64_t>(i));
  }
  fail(to_repr(args.positional[0]), " is not in list");
}

Value list_count(Evaluator& evaluator, const Value& self, Args& args) {
  const auto& items = self.items();
  evaluator.charge_comparisons(args.positional[0], 8 * items.size());
  return Value(static_cast<int64_t>(
      std::count_if(items.begin(), items.end(), [&](const Value& item) { return equals(item, args.positional[0]); })));
}

Value list_reverse(Evaluator& evaluator, const Value& self, Args&) {
  evaluator.charge_steps(self.items().size() / 8);
  std::reverse(self.items().begin(), self.items().end());
  return Value();
}

Value list_copy(Evaluator& evaluator, const Value& self, Args&) {
  return evaluator.heap().list(evaluator.iterate(self));
}

constexpr Builtin kListMethods[] = {
    {"append", 1, "object", list_append},       {"extend", 1, "iterable", list_extend},
    {"insert", 2, "index,object", list_insert}, {"pop", 0, "index", list_pop},
    {"index", 1, "value", list_index},          {"count", 1, "value", list_count},
    {"reverse", 0, "", list_reverse},           {"copy", 0, "", list_copy},
};
constexpr Builtin kTupleMethods[] = {{"index", 1, "value", list_index}, {"count", 1, "value", list_count}};

Value dict_get(Evaluator&, const Value& self, Args& args) {
  if (const Value* found = self.entries().find(args.positional[0])) return *found;
  return args.positional[1].is(Kind::kAbsent) ? Value() : args.positional[1];
}

enum class Part { kKeys, kValues, kItems };

template <Part part>
Value dict_list(Evaluator& evaluator, const Value& self, Args&) {
  std::vector<Value> items;
  evaluator.charge_steps(self.entries().entries.size());
  for (const auto& [key, value] : self.entries().entries) {
    items.push_back(part == Part::kKeys ? key : part == Part::kValues ? value : tuple_of(evaluator, key, value));
  }
  return evaluator.heap().list(std::move(items));
}

Value dict_pop(Evaluator& evaluator, const Value& self, Args& args) {
  evaluator.charge_steps(self.entries().entries.size());
  const Value* found = self.entries().find(args.positional[0]);
  if (found == nullptr) {
    if (args.positional[1].is(Kind::kAbsent)) fail("KeyError: ", to_repr(args.positional[0]));
    return args.positional[1];
  }
  const Value value = *found;
  self.entries().erase(args.positional[0]);
  return value;
}

Value dict_update(Evaluator& evaluator, const Value& self, Args& args) {
  evaluator.charge_steps(self.entries().entries.size() / 8);
  for (const Value& given : args.positional) {
    if (!given.is(Kind::kDict)) fail("update() takes a dict");
    evaluator.heap().charge(given.entries().entries.size() * 2 * sizeof(Value));
    evaluator.charge_steps(given.entries().entries.size() * (1 + self.entries().entries.size() / 64));
    const auto entries = given.entries().entries;
    for (const auto& [key, value] : entries) self.entries().set(key, value);
  }
  for (const auto& [name, value] : args.named) self.entries().set(Value(name), value);
  return Value();
}

Value dict_setdefault(Evaluator& evaluator, const Value& self, Args& args) {
  evaluator.charge_steps(self.entries().entries.size() / 8);
  if (const Value* found = self.entries().find(args.positional[0])) return *found;
  evaluator.heap().charge(2 * sizeof(Value));
  const Value value = args.positional[1].is(Kind::kAbsent) ? Value() : args.positional[1];
  self.entries().set(args.positional[0], value);
  return value;
}

Value dict_copy(Evaluator& evaluator, const Value& self, Args&) {
  evaluator.charge_steps(self.entries().entries.size());
  evaluator.heap().charge(self.entries().entries.size() * 2 * sizeof(Value));
  auto* copy = evaluator.heap().make<DictObject>(evaluator.heap());
  *copy = self.entries();
  return Value::dict(copy);
}

constexpr Builtin kDictMethods[] = {
    {"get", 1, "key,default", dict_get},
    {"keys", 0, "", dict_list<Part::kKeys>},
    {"values", 0, "", dict_list<Part::kValues>},
    {"items", 0, "", dict_list<Part::kItems>},
    {"pop", 1, "key,default", dict_pop},
    {"update", 0, "*", dict_update},
    {"setdefault", 1, "key,default", dict_setdefault},
    {"copy", 0, "", dict_copy},
};

Value loop_cycle(Evaluator&, const Value& self, Args& args) {
  if (args.positional.empty()) fail("no items for cycling given");
  return args.positional[self.loop().index0 % args.positional.size()];
}

Value loop_changed(Evaluator& evaluator, const Value& self, Args& args) {
  const Value now = evaluator.heap().tuple(args.positional);
  const Value before = std::exchange(self.loop().last_changed, now);
  return Value(before.is(Kind::kAbsent) || !equals(before, now));
}

constexpr Builtin kLoopMethods[] = {{"cycle", 0, "*", loop_cycle}, {"changed", 0, "*", loop_changed}};

Value int_bit_length(Evaluator&, const Value& self, Args&) {
  const int64_t value = self.integer();
  const uint64_t size = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  return Value(static_cast<int64_t>(std::bit_width(size)));
}

Value float_is_integer(Evaluator&, const Value& self, Args&) {
  return Value(std::isfinite(self.number()) && std::trunc(self.number()) == self.number());
}

constexpr Builtin kIntMethods[] = {{"bit_length", 0, "", int_bit_length}};
constexpr Builtin kFloatMethods[] = {{"is_integer", 0, "", float_is_integer}};

std::span<const Builtin> methods_of(Kind kind) {
  switch (kind) {
    case Kind::kString: return string_methods();
    case Kind::kList: return kListMethods;
    case Kind::kTuple: return kTupleMethods;
    case Kind::kDict: return kDictMethods;
    case Kind::kLoop: return kLoopMethods;
    case Kind::kBool:
    case Kind::kInt: return kIntMethods;
    case Kind::kFloat: return kFloatMethods;
    default: return {};
  }
}

}  // namespace

const Builtin* find_method(Kind kind, std::string_view name) {
  for (const Builtin& method : methods_of(kind)) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

}  // namespace millrace::text::jinja
