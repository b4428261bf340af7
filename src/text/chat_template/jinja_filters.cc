#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/utf8.h"
#include "text/chat_template/jinja_builtins.h"
#include "text/chat_template/jinja_operators.h"
#include "text/chat_template/jinja_json.h"
#include "text/unicode.h"

// The filters of templates: `value | name(arguments)`.
namespace millrace::text::jinja {
namespace {

using Args = CallArguments;

bool flag(const Value& value, bool fallback) {
  return value.is(Kind::kAbsent) ? fallback : is_true(value);
}

std::string text_of(const Value& self) {
  return to_str(self);
}

Value filter_default(Evaluator& evaluator, const Value& self, Args& args) {
  const bool missing = self.is(Kind::kUndefined) || (flag(args.positional[1], false) && !is_true(self));
  if (!missing) return self;
  return args.positional[0].is(Kind::kAbsent) ? evaluator.string("") : args.positional[0];
}

Value filter_length(Evaluator& evaluator, const Value& self, Args&) {
  if (self.is(Kind::kString)) evaluator.charge_steps(self.string().size() / 64);
  const auto length = length_of(self);
  if (!length) fail("object of type '", type_name(self.kind()), "' has no len()");
  return Value(*length);
}

Value filter_string(Evaluator& evaluator, const Value& self, Args&) {
  return self.is(Kind::kString) ? self : evaluator.string(text_of(self));
}

Value filter_trim(Evaluator& evaluator, const Value& self, Args& args) {
  const std::string text = text_of(self);
  evaluator.charge_steps(text.size() / 8);
  return string_like(evaluator, self, strip(text, args.positional[0], true, true));
}

template <std::string (*map)(std::string_view)>
Value filter_map_text(Evaluator& evaluator, const Value& self, Args&) {
  const std::string text = text_of(self);
  evaluator.charge_steps(text.size() / 16);
  return string_like(evaluator, self, map(text));
}

Value filter_replace(Evaluator& evaluator, const Value& self, Args& args) {
  return evaluator.string(replace(evaluator, text_of(self), text_of(args.positional[0]), text_of(args.positional[1]),
                                  int_argument(args.positional[2], -1)));
}

/// Unlike str.title, only a space, hyphen or opening bracket begins a word.
std::string title_words(std::string_view text) {
  std::string out;
  bool begins = true;
  while (!text.empty()) {
    const DecodedUtf8 step = decode_utf8(text);
    const std::string_view one = text.substr(0, step.length);
    const bool separates =
        is_python_space(step.code_point) || std::string_view("-({[<").find(one) != std::string_view::npos;
    out += begins && !separates ? to_upper(one) : to_lower(one);
    begins = separates;
    text.remove_prefix(step.length);
  }
  return out;
}

Value filter_title(Evaluator& evaluator, const Value& self, Args&) {
  const std::string text = text_of(self);
  evaluator.charge_steps(text.size() / 16);
  return evaluator.string(title_words(text));
}

Value filter_safe(Evaluator& evaluator, const Value& self, Args&) {
  return self.is_markup() ? self : evaluator.heap().string(text_of(self), true);
}

Value filter_escape(Evaluator& evaluator, const Value& self, Args&) {
  return self.is_markup() ? self : evaluator.heap().string(escape_html(text_of(self)), true);
}

Value filter_force_escape(Evaluator& evaluator, const Value& self, Args&) {
  return evaluator.heap().string(escape_html(text_of(self)), true);
}

Value filter_indent(Evaluator& evaluator, const Value& self, Args& args) {
  const Value& width = args.positional[0];
  std::string pad = "    ";
  if (width.is(Kind::kString)) {
    pad = width.string();
  } else if (!width.is(Kind::kAbsent)) {
    pad.assign(static_cast<size_t>(std::clamp<int64_t>(int_argument(width, 4), 0, 1000)), ' ');
  }
  const bool first = flag(args.positional[1], false);
  const bool blank = flag(args.positional[2], false);
  const std::string text = text_of(self);
  std::string out = first ? pad : "";
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (begin > 0 && (blank || end > begin)) out += pad;
    evaluator.heap().charge(pad.size() + end - begin);
    out.append(text, begin, end - begin);
    if (end < text.size()) out += '\n';
    begin = end + 1;
  }
  return string_like(evaluator, self, std::move(out));
}

Value filter_tojson(Evaluator& evaluator, const Value& self, Args& args) {
  JsonStyle style;
  style.ensure_ascii = flag(args.positional[0], false);
  const Value& indent = args.positional[1];
  if (indent.is(Kind::kString)) {
    style.indent = indent.string();
  } else if (!indent.is(Kind::kAbsent) && !indent.is(Kind::kNone)) {
    style.indent = std::string(static_cast<size_t>(std::clamp<int64_t>(int_argument(indent, 0), 0, 64)), ' ');
  }
  if (style.indent) style.item_separator = ",";
  const Value& separators = args.positional[2];
  if (!separators.is(Kind::kAbsent) && !separators.is(Kind::kNone)) {
    const std::vector<Value> pair = evaluator.iterate(separators);
    if (pair.size() != 2) fail("tojson: separators is not a pair");
    style.item_separator = string_argument(pair[0], "");
    style.key_separator = string_argument(pair[1], "");
  }
  style.sort_keys = flag(args.positional[3], false);
  std::string json = dump_json(self, style);
  evaluator.charge_steps(json.size() / 8);
  return evaluator.string(std::move(json));
}

/// Gives the argument, if there is one, for a text that is no JSON.
Value filter_from_json(Evaluator& evaluator, const Value& self, Args& args) {
  const std::string text(string_argument(self, ""));
  if (args.positional[0].is(Kind::kAbsent)) return parse_json(text, "from_json", evaluator.heap());
  try {
    return parse_json(text, "from_json", evaluator.heap());
  } catch (const TemplateError&) {
    return args.positional[0];
  }
}

Value filter_int(Evaluator&, const Value& self, Args& args) {
  const Value fallback = args.positional[0].is(Kind::kAbsent) ? Value(int64_t{0}) : args.positional[0];
  const int64_t base = int_argument(args.positional[1], 10);
  if (self.is(Kind::kUndefined)) fail(self.undefined_message());
  if (self.is_integral()) return Value(self.integer());
  if (self.is(Kind::kBigInt)) return self;
  double number = 0;
  if (self.is(Kind::kString)) {
    const std::string text = strip(self.string(), Value::absent(), true, true);
    const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
    const char* end = text.data() + text.size();
    int64_t value = 0;
    if (base >= 2 && base <= 36) {
      const auto parsed = std::from_chars(begin, end, value, static_cast<int>(base));
      if (parsed.ec == std::errc() && parsed.ptr == end) return Value(value);
    }
    const auto parsed = std::from_chars(begin, end, number);
    if (parsed.ec != std::errc() || parsed.ptr != end) return fallback;
  } else if (self.is(Kind::kFloat)) {
    number = self.number();
  } else {
    return fallback;
  }
  if (!(std::fabs(number) < 9.2e18)) return fallback;
  return Value(static_cast<int64_t>(number));
}

Value filter_float(Evaluator&, const Value& self, Args& args) {
  const Value fallback = args.positional[0].is(Kind::kAbsent) ? Value(0.0) : args.positional[0];
  if (self.is(Kind::kUndefined)) fail(self.undefined_message());
  if (self.is_number()) return Value(self.number());
  if (!self.is(Kind::kString)) return fallback;
  const std::string text = strip(self.string(), Value::absent(), true, true);
  double number = 0;
  const auto parsed = std::from_chars(text.data() + (text.starts_with('+') ? 1 : 0), text.data() + text.size(), number);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return fallback;
  return Value(number);
}

Value filter_abs(Evaluator& evaluator, const Value& self, Args&) {
  if (self.is(Kind::kFloat)) return Value(std::fabs(self.number()));
  if (self.is(Kind::kBigInt)) {
    const std::string& digits = self.digits();
    if (!digits.starts_with('-')) return self;
    return evaluator.heap().big_integer(std::string_view(digits).substr(1), -self.number());
  }
  if (!self.is_integral()) fail("bad operand type for abs(): '", type_name(self.kind()), "'");
  return self.integer() < 0 ? binary(evaluator, Operator::kSubtract, Value(int64_t{0}), self) : Value(self.integer());
}

Value filter_round(Evaluator&, const Value& self, Args& args) {
  if (!self.is_number()) fail("type ", type_name(self.kind()), " doesn't define __round__ method");
  const int64_t precision = std::clamp<int64_t>(int_argument(args.positional[0], 0), -300, 300);
  const std::string_view method = string_argument(args.positional[1], "common");
  if (method == "common" && self.is_integral() && precision >= 0) return Value(self.integer());
  if (method == "common" && self.is(Kind::kBigInt) && precision >= 0) return self;
  const double factor = std::pow(10.0, static_cast<double>(precision));
  const double value = self.number();
  if (method == "ceil") return Value(std::ceil(value * factor) / factor);
  if (method == "floor") return Value(std::floor(value * factor) / factor);
  if (method != "common") fail("method must be common, ceil or floor");
  // Correctly rounded to the decimal places, half to even, as Python's round is.
  if (precision < 0) return Value(std::nearbyint(value * factor) / factor);
  char buffer[700];
  const int places = static_cast<int>(std::min<int64_t>(precision, 300));
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed, places).ptr;
  double rounded = value;
  std::from_chars(buffer, end, rounded);
  return Value(rounded);
}

/// `item.a.b.0` for the attribute argument of map, sort, join and others.
Value attribute_path(Evaluator& evaluator, Value item, const Value& path) {
  if (path.is_integral()) return subscript(evaluator, item, path);
  std::string_view rest = string_argument(path, "");
  while (true) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view name = rest.substr(0, dot);
    int64_t index = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool is_index = parsed.ec == std::errc() && parsed.ptr == name.data() + name.size();
    item = subscript(evaluator, item, is_index ? Value(index) : evaluator.string(std::string(name)));
    if (dot == rest.size()) return item;
    rest.remove_prefix(dot + 1);
  }
}

/// Returns what a value sorts and groups by: the attribute, if one is given, in lower case unless case counts.
Value sort_key(Evaluator& evaluator, const Value& item, const Value& attribute, bool case_sensitive) {
  const Value key =
      attribute.is(Kind::kAbsent) || attribute.is(Kind::kNone) ? item : attribute_path(evaluator, item, attribute);
  return key.is(Kind::kString) && !case_sensitive ? evaluator.string(to_lower(key.string())) : key;
}

/// Sorts by keys, stable; the comparison may throw.
void sort_by(Evaluator& evaluator, std::vector<std::pair<Value, Value>>& keyed, bool reverse) {
  evaluator.charge_steps(keyed.size() * 4);
  merge_sort(keyed, [&](const Value& a, const Value& b) {
    evaluator.charge_comparisons(a, 1);
    return reverse ? compare(b, a, "<") < 0 : compare(a, b, "<") < 0;
  });
}

Value list_of_seconds(Evaluator& evaluator, const std::vector<std::pair<Value, Value>>& keyed) {
  std::vector<Value> items;
  for (const auto& entry : keyed) items.push_back(entry.second);
  return evaluator.heap().list(std::move(items));
}

Value filter_sort(Evaluator& evaluator, const Value& self, Args& args) {
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : evaluator.iterate(self)) {
    keyed.emplace_back(sort_key(evaluator, item, args.positional[2], flag(args.positional[1], false)), item);
  }
  sort_by(evaluator, keyed, flag(args.positional[0], false));
  return list_of_seconds(evaluator, keyed);
}

Value filter_dictsort(Evaluator& evaluator, const Value& self, Args& args) {
  if (!self.is(Kind::kDict)) fail("dictsort needs a mapping, not ", type_name(self.kind()));
  const std::string_view by = string_argument(args.positional[1], "key");
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : self.entries().entries) {
    const Value sorted_by = sort_key(evaluator, by == "key" ? key : value, Value(), flag(args.positional[0], false));
    keyed.emplace_back(sorted_by, tuple_of(evaluator, key, value));
  }
  sort_by(evaluator, keyed, flag(args.positional[2], false));
  return list_of_seconds(evaluator, keyed);
}

template <bool maximum>
Value filter_extreme(Evaluator& evaluator, const Value& self, Args& args) {
  Value best = Value::undefined(nullptr);
  Value best_key;
  bool first = true;
  for (const Value& item : evaluator.iterate(self)) {
    const Value key = sort_key(evaluator, item, args.positional[1], flag(args.positional[0], false));
    const bool better = first || (maximum ? compare(key, best_key, ">") > 0 : compare(key, best_key, "<") < 0);
    if (better) {
      best = item;
      best_key = key;
    }
    first = false;
  }
  return best;
}

Value filter_unique(Evaluator& evaluator, const Value& self, Args& args) {
  std::vector<Value> seen;
  std::vector<Value> items;
  for (const Value& item : evaluator.iterate(self)) {
    const Value key = sort_key(evaluator, item, args.positional[1], flag(args.positional[0], false));
    evaluator.charge_comparisons(key, 2 * seen.size());
    const bool known = std::any_of(seen.begin(), seen.end(), [&](const Value& old) { return equals(old, key); });
    if (known) continue;
    seen.push_back(key);
    items.push_back(item);
  }
  return evaluator.heap().list(std::move(items));
}

Value filter_groupby(Evaluator& evaluator, const Value& self, Args& args) {
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : evaluator.iterate(self)) {
    Value key = attribute_path(evaluator, item, args.positional[0]);
    if (key.is(Kind::kUndefined) && !args.positional[1].is(Kind::kAbsent)) key = args.positional[1];
    keyed.emplace_back(key, item);
  }
  sort_by(evaluator, keyed, false);
  std::vector<Value> groups;
  for (size_t i = 0; i < keyed.size();) {
    std::vector<Value> members;
    const Value key = keyed[i].first;
    for (; i < keyed.size() && equals(keyed[i].first, key); ++i) members.push_back(keyed[i].second);
    groups.push_back(tuple_of(evaluator, key, evaluator.heap().list(std::move(members))));
  }
  return evaluator.heap().list(std::move(groups));
}

Value filter_first(Evaluator& evaluator, const Value& self, Args&) {
  const std::vector<Value> items = evaluator.iterate(self);
  return items.empty() ? Value::undefined(nullptr) : items.front();
}

Value filter_last(Evaluator& evaluator, const Value& self, Args&) {
  const std::vector<Value> items = evaluator.iterate(self);
  return items.empty() ? Value::undefined(nullptr) : items.back();
}

Value filter_list(Evaluator& evaluator, const Value& self, Args&) {
  return evaluator.heap().list(evaluator.iterate(self));
}

Value filter_reverse(Evaluator& evaluator, const Value& self, Args&) {
  std::vector<Value> items = evaluator.iterate(self);
  std::reverse(items.begin(), items.end());
  if (self.is(Kind::kString)) return string_like(evaluator, self, join(evaluator, items, ""));
  return evaluator.heap().list(std::move(items));
}

Value filter_items(Evaluator& evaluator, const Value& self, Args&) {
  if (self.is(Kind::kUndefined)) return evaluator.heap().list({});
  if (!self.is(Kind::kDict)) fail("Can only get item pairs from a mapping.");
  std::vector<Value> items;
  for (const auto& [key, value] : self.entries().entries) items.push_back(tuple_of(evaluator, key, value));
  return evaluator.heap().list(std::move(items));
}

Value filter_join(Evaluator& evaluator, const Value& self, Args& args) {
  std::vector<Value> items = evaluator.iterate(self);
  const Value& attribute = args.positional[1];
  if (!attribute.is(Kind::kAbsent) && !attribute.is(Kind::kNone)) {
    for (Value& item : items) item = attribute_path(evaluator, item, attribute);
  }
  const std::string separator = args.positional[0].is(Kind::kAbsent) ? "" : to_str(args.positional[0]);
  return evaluator.string(join(evaluator, items, separator));
}

Value filter_sum(Evaluator& evaluator, const Value& self, Args& args) {
  Value total = args.positional[1].is(Kind::kAbsent) ? Value(int64_t{0}) : args.positional[1];
  for (const Value& item : evaluator.iterate(self)) {
    const bool by_attribute = !args.positional[0].is(Kind::kAbsent) && !args.positional[0].is(Kind::kNone);
    total = binary(evaluator, Operator::kAdd, total,
                   by_attribute ? attribute_path(evaluator, item, args.positional[0]) : item);
  }
  return total;
}

/// Returns the arguments from `from` on, for the filter or test that map or select names.
Args tail_of(const Args& args, size_t from) {
  Args tail;
  for (size_t i = from; i < args.positional.size(); ++i) tail.positional.push_back(args.positional[i]);
  tail.named = args.named;
  return tail;
}

/// Returns the items of what map and select take; none of a value that is false.
std::vector<Value> items_if_any(Evaluator& evaluator, const Value& value) {
  return is_true(value) ? evaluator.iterate(value) : std::vector<Value>();
}

Value filter_map(Evaluator& evaluator, const Value& self, Args& args) {
  std::vector<Value> items = items_if_any(evaluator, self);
  if (!args.positional.empty()) {
    const std::string name(string_argument(args.positional[0], ""));
    for (Value& item : items) item = evaluator.apply_filter(name, item, tail_of(args, 1));
    return evaluator.heap().list(std::move(items));
  }
  Value attribute = Value::absent();
  Value fallback = Value::absent();
  for (const auto& [name, value] : args.named) {
    if (name->text == "attribute") attribute = value;
    if (name->text == "default") fallback = value;
  }
  if (attribute.is(Kind::kAbsent)) fail("map requires a filter argument");
  for (Value& item : items) {
    item = attribute_path(evaluator, item, attribute);
    if (item.is(Kind::kUndefined) && !fallback.is(Kind::kAbsent)) item = fallback;
  }
  return evaluator.heap().list(std::move(items));
}

/// select, reject and, with an attribute as first argument, selectattr, rejectattr.
template <bool by_attribute, bool wanted>
Value filter_select(Evaluator& evaluator, const Value& self, Args& args) {
  if (by_attribute && args.positional.empty()) fail("Missing parameter for attribute name");
  const size_t test_at = by_attribute ? 1 : 0;
  const bool has_test = args.positional.size() > test_at;
  const std::string test = has_test ? std::string(string_argument(args.positional[test_at], "")) : "";
  std::vector<Value> selected;
  for (const Value& item : items_if_any(evaluator, self)) {
    const Value tested = by_attribute ? attribute_path(evaluator, item, args.positional[0]) : item;
    const bool passes = has_test ? evaluator.apply_test(test, tested, tail_of(args, test_at + 1)) : is_true(tested);
    if (passes == wanted) selected.push_back(item);
  }
  return evaluator.heap().list(std::move(selected));
}

Value filter_attr(Evaluator& evaluator, const Value& self, Args& args) {
  const std::string_view name = string_argument(args.positional[0], "");
  const Symbol symbol = args.positional[0].string_object();
  if (self.is(Kind::kDict) && find_method(Kind::kDict, name) == nullptr) return Value::undefined(symbol, Kind::kDict);
  return attribute(evaluator, self, symbol);
}

Value filter_format(Evaluator& evaluator, const Value& self, Args& args) {
  const Value format = self.is(Kind::kString) ? self : evaluator.string(text_of(self));
  return string_like(evaluator, format, percent_format(evaluator, format, evaluator.heap().tuple(args.positional)));
}

constexpr Builtin kFilters[] = {
    {"abs", 0, "", filter_abs},
    {"attr", 1, "name", filter_attr},
    {"capitalize", 0, "", filter_map_text<capitalize>},
    {"count", 0, "", filter_length},
    {"d", 0, "default_value,boolean", filter_default},
    {"default", 0, "default_value,boolean", filter_default},
    {"dictsort", 0, "case_sensitive,by,reverse", filter_dictsort},
    {"e", 0, "", filter_escape},
    {"escape", 0, "", filter_escape},
    {"first", 0, "", filter_first},
    {"float", 0, "default", filter_float},
    {"forceescape", 0, "", filter_force_escape},
    {"format", 0, "*", filter_format},
    {"from_json", 0, "default", filter_from_json},
    {"groupby", 1, "attribute,default", filter_groupby},
    {"indent", 0, "width,first,blank", filter_indent},
    {"int", 0, "default,base", filter_int},
    {"items", 0, "", filter_items},
    {"join", 0, "d,attribute", filter_join},
    {"last", 0, "", filter_last},
    {"length", 0, "", filter_length},
    {"list", 0, "", filter_list},
    {"lower", 0, "", filter_map_text<to_lower>},
    {"map", 0, "*", filter_map},
    {"max", 0, "case_sensitive,attribute", filter_extreme<true>},
    {"min", 0, "case_sensitive,attribute", filter_extreme<false>},
    {"reject", 0, "*", filter_select<false, false>},
    {"rejectattr", 0, "*", filter_select<true, false>},
    {"replace", 2, "old,new,count", filter_replace},
    {"reverse", 0, "", filter_reverse},
    {"round", 0, "precision,method", filter_round},
    {"safe", 0, "", filter_safe},
    {"select", 0, "*", filter_select<false, true>},
    {"selectattr", 0, "*", filter_select<true, true>},
    {"sort", 0, "reverse,case_sensitive,attribute", filter_sort},
    {"string", 0, "", filter_string},
    {"sum", 0, "attribute,start", filter_sum},
    {"title", 0, "", filter_title},
    {"tojson", 0, "ensure_ascii,indent,separators,sort_keys", filter_tojson},
    {"trim", 0, "chars", filter_trim},
    {"unique", 0, "case_sensitive,attribute", filter_unique},
    {"upper", 0, "", filter_map_text<to_upper>},
};

}  // namespace

const Builtin* find_filter(std::string_view name) {
  const auto has_name = [&](const Builtin& filter) { return filter.name == name; };
  const auto* it = std::find_if(std::begin(kFilters), std::end(kFilters), has_name);
  if (it != std::end(kFilters)) return it;
  const std::span<const Builtin> more = layout_filters();
  const auto found = std::ranges::find_if(more, has_name);
  return found == more.end() ? nullptr : &*found;
}

}  // namespace millrace::text::jinja
