#include <algorithm>
#include <span>

#include "base/utf8.h"
#include "text/chat_template/jinja_builtins.h"
#include "text/unicode.h"

// The methods of str, list, dict and loop that templates may call.
namespace millrace::text::jinja {
namespace {

using Args = CallArguments;

/// How many bytes at the start of `text` are white space (`spaces`), or are not.
size_t run_length(std::string_view text, bool spaces) {
  size_t length = 0;
  while (length < text.size()) {
    const DecodedUtf8 step = decode_utf8(text.substr(length));
    if (is_python_space(step.code_point) != spaces) break;
    length += step.length;
  }
  return length;
}

/// Python's split without a separator: at runs of white space, at most `limit` times.
std::vector<Value> split_spaces(Evaluator& evaluator, std::string_view text, int64_t limit) {
  evaluator.charge_steps(text.size() / 16);
  std::vector<Value> parts;
  while (true) {
    text.remove_prefix(run_length(text, true));
    if (text.empty()) return parts;
    const size_t end = limit-- == 0 ? text.size() : run_length(text, false);
    parts.push_back(evaluator.string(std::string(text.substr(0, end))));
    text.remove_prefix(end);
  }
}

Value str_split(Evaluator& evaluator, const Value& self, Args& args) {
  const int64_t limit = int_argument(args.positional[1], -1);
  const Value& separator = args.positional[0];
  std::string_view text = self.string();
  if (separator.is(Kind::kAbsent) || separator.is(Kind::kNone)) {
    return evaluator.heap().list(split_spaces(evaluator, text, limit));
  }
  const std::string_view sep = string_argument(separator, "");
  if (sep.empty()) fail("empty separator");
  evaluator.charge_search(text, sep);
  std::vector<Value> parts;
  for (int64_t i = 0; i != limit; ++i) {
    const size_t at = text.find(sep);
    if (at == std::string_view::npos) break;
    parts.push_back(evaluator.string(std::string(text.substr(0, at))));
    text.remove_prefix(at + sep.size());
  }
  parts.push_back(evaluator.string(std::string(text)));
  return evaluator.heap().list(std::move(parts));
}

Value str_rsplit(Evaluator& evaluator, const Value& self, Args& args) {
  const int64_t limit = int_argument(args.positional[1], -1);
  const std::string_view sep = string_argument(args.positional[0], "");
  if (sep.empty()) fail("rsplit() needs a separator here");
  std::string_view text = self.string();
  evaluator.charge_search(text, sep);
  std::vector<Value> parts;
  for (int64_t i = 0; i != limit; ++i) {
    const size_t at = text.rfind(sep);
    if (at == std::string_view::npos) break;
    parts.push_back(evaluator.string(std::string(text.substr(at + sep.size()))));
    text = text.substr(0, at);
  }
  parts.push_back(evaluator.string(std::string(text)));
  std::reverse(parts.begin(), parts.end());
  return evaluator.heap().list(std::move(parts));
}

Value str_splitlines(Evaluator& evaluator, const Value& self, Args& args) {
  const bool keeps = !args.positional[0].is(Kind::kAbsent) && is_true(args.positional[0]);
  std::vector<Value> lines;
  for (std::string_view rest = self.string(); !rest.empty();) {
    const size_t end = std::min(rest.find_first_of("\n\r"), rest.size());
    const size_t next = std::min(end + (rest.substr(end, 2) == "\r\n" ? 2 : 1), rest.size());
    lines.push_back(evaluator.string(std::string(rest.substr(0, keeps ? next : end))));
    rest.remove_prefix(next);
  }
  return evaluator.heap().list(std::move(lines));
}

template <bool left, bool right>
Value str_strip(Evaluator& evaluator, const Value& self, Args& args) {
  evaluator.charge_steps(self.string().size() / 8);
  return evaluator.string(strip(self.string(), args.positional[0], left, right));
}

/// One affix, or a tuple of them.
template <bool at_start>
Value str_has_affix(Evaluator& evaluator, const Value& self, Args& args) {
  const Value& given = args.positional[0];
  const std::vector<Value> affixes = given.is(Kind::kTuple) ? evaluator.iterate(given) : std::vector<Value>{given};
  return Value(std::any_of(affixes.begin(), affixes.end(), [&](const Value& affix) {
    const std::string_view text = string_argument(affix, "");
    evaluator.charge_steps(text.size() / 64);
    return at_start ? self.string().starts_with(text) : self.string().ends_with(text);
  }));
}

template <bool at_start>
Value str_remove_affix(Evaluator& evaluator, const Value& self, Args& args) {
  const std::string_view affix = string_argument(args.positional[0], "");
  std::string_view text = self.string();
  if (at_start && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!at_start && text.ends_with(affix)) text.remove_suffix(affix.size());
  return evaluator.string(std::string(text));
}

template <std::string (*map)(std::string_view)>
Value str_map(Evaluator& evaluator, const Value& self, Args&) {
  evaluator.charge_steps(self.string().size() / 16);
  return evaluator.string(map(self.string()));
}

Value str_replace(Evaluator& evaluator, const Value& self, Args& args) {
  return evaluator.string(replace(evaluator, self.string(), string_argument(args.positional[0], ""),
                                  string_argument(args.positional[1], ""), int_argument(args.positional[2], -1)));
}

template <bool from_right>
Value str_find(Evaluator& evaluator, const Value& self, Args& args) {
  const std::string_view text = self.string();
  const std::string_view needle = string_argument(args.positional[0], "");
  evaluator.charge_search(text, needle);
  const size_t at = from_right ? text.rfind(needle) : text.find(needle);
  if (at == std::string_view::npos) return Value(int64_t{-1});
  return Value(static_cast<int64_t>(count_code_points(text.substr(0, at))));
}

Value str_index(Evaluator& evaluator, const Value& self, Args& args) {
  const Value found = str_find<false>(evaluator, self, args);
  if (found.integer() < 0) fail("substring not found");
  return found;
}

Value str_count(Evaluator& evaluator, const Value& self, Args& args) {
  const std::string_view text = self.string();
  const std::string_view needle = string_argument(args.positional[0], "");
  evaluator.charge_search(text, needle);
  if (needle.empty()) return Value(static_cast<int64_t>(count_code_points(text)) + 1);
  int64_t count = 0;
  for (size_t at = text.find(needle); at != std::string_view::npos; at = text.find(needle, at + needle.size())) ++count;
  return Value(count);
}

Value str_join(Evaluator& evaluator, const Value& self, Args& args) {
  const std::vector<Value> items = evaluator.iterate(args.positional[0]);
  for (const Value& item : items) {
    if (!item.is(Kind::kString)) fail("sequence item: expected str instance, ", type_name(item.kind()), " found");
  }
  return evaluator.string(join(evaluator, items, self.string()));
}

Value str_format(Evaluator& evaluator, const Value& self, Args& args) {
  return evaluator.string(brace_format(evaluator, self.string(), args));
}

Value str_partition(Evaluator& evaluator, const Value& self, Args& args) {
  const std::string_view text = self.string();
  const std::string_view sep = string_argument(args.positional[0], "");
  if (sep.empty()) fail("empty separator");
  evaluator.charge_search(text, sep);
  const size_t at = std::min(text.find(sep), text.size());
  const size_t end = std::min(at + sep.size(), text.size());
  return evaluator.heap().tuple({evaluator.string(std::string(text.substr(0, at))),
                                 evaluator.string(std::string(text.substr(at, end - at))),
                                 evaluator.string(std::string(text.substr(end)))});
}

template <bool (*accepts)(char32_t)>
Value str_all(Evaluator& evaluator, const Value& self, Args&) {
  evaluator.charge_steps(self.string().size() / 8);
  for (std::string_view rest = self.string(); !rest.empty();) {
    const DecodedUtf8 step = decode_utf8(rest);
    if (!accepts(step.code_point)) return Value(false);
    rest.remove_prefix(step.length);
  }
  return Value(!self.string().empty());
}

bool is_digit(char32_t c) {
  return c >= '0' && c <= '9';
}
bool is_alphanumeric(char32_t c) {
  return is_digit(c) || is_alphabetic(c);
}

Value str_is_case(Evaluator& evaluator, const Value& self, std::string_view test) {
  return Value(evaluator.apply_test(test, self, {}));
}
Value str_islower(Evaluator& evaluator, const Value& self, Args&) {
  return str_is_case(evaluator, self, "lower");
}
Value str_isupper(Evaluator& evaluator, const Value& self, Args&) {
  return str_is_case(evaluator, self, "upper");
}

constexpr Builtin kStringMethods[] = {
    {"split", 0, "sep,maxsplit", str_split},
    {"rsplit", 1, "sep,maxsplit", str_rsplit},
    {"splitlines", 0, "keepends", str_splitlines},
    {"strip", 0, "chars", str_strip<true, true>},
    {"lstrip", 0, "chars", str_strip<true, false>},
    {"rstrip", 0, "chars", str_strip<false, true>},
    {"startswith", 1, "prefix", str_has_affix<true>},
    {"endswith", 1, "suffix", str_has_affix<false>},
    {"removeprefix", 1, "prefix", str_remove_affix<true>},
    {"removesuffix", 1, "suffix", str_remove_affix<false>},
    {"upper", 0, "", str_map<to_upper>},
    {"lower", 0, "", str_map<to_lower>},
    {"title", 0, "", str_map<to_title>},
    {"capitalize", 0, "", str_map<capitalize>},
    {"replace", 2, "old,new,count", str_replace},
    {"find", 1, "sub", str_find<false>},
    {"rfind", 1, "sub", str_find<true>},
    {"index", 1, "sub", str_index},
    {"count", 1, "sub", str_count},
    {"join", 1, "iterable", str_join},
    {"format", 0, "*", str_format},
    {"partition", 1, "sep", str_partition},
    {"isdigit", 0, "", str_all<is_digit>},
    {"isdecimal", 0, "", str_all<is_digit>},
    {"isalpha", 0, "", str_all<is_alphabetic>},
    {"isalnum", 0, "", str_all<is_alphanumeric>},
    {"isspace", 0, "", str_all<is_python_space>},
    {"islower", 0, "", str_islower},
    {"isupper", 0, "", str_isupper},
};

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

std::span<const Builtin> methods_of(Kind kind) {
  switch (kind) {
    case Kind::kString: return kStringMethods;
    case Kind::kList: return kListMethods;
    case Kind::kTuple: return kTupleMethods;
    case Kind::kDict: return kDictMethods;
    case Kind::kLoop: return kLoopMethods;
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
