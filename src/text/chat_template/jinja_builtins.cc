#include "text/chat_template/jinja_builtins.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/unicode.h"

namespace millrace::text::jinja {

void bind_arguments(const Builtin& builtin, CallArguments& arguments) {
  if (builtin.parameters == "*") return;
  std::vector<std::string_view> names;
  for (std::string_view rest = builtin.parameters; !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    names.push_back(rest.substr(0, comma));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  if (arguments.positional.size() > names.size()) {
    fail(builtin.name, "() takes at most ", std::to_string(names.size()), " argument(s), got ",
         std::to_string(arguments.positional.size()));
  }
  arguments.positional.resize(names.size(), Value::absent());
  for (const auto& [name, value] : arguments.named) {
    const auto it = std::find(names.begin(), names.end(), name->text);
    if (it == names.end()) fail(builtin.name, "() got an unexpected keyword argument '", name->text, "'");
    Value& slot = arguments.positional[static_cast<size_t>(it - names.begin())];
    if (!slot.is(Kind::kAbsent)) fail(builtin.name, "() got multiple values for argument '", name->text, "'");
    slot = value;
  }
  for (size_t i = 0; i < static_cast<size_t>(builtin.required); ++i) {
    if (arguments.positional[i].is(Kind::kAbsent)) fail(builtin.name, "() misses its argument '", names[i], "'");
  }
}

int64_t int_argument(const Value& value, int64_t fallback) {
  if (value.is(Kind::kAbsent) || value.is(Kind::kNone)) return fallback;
  if (!value.is_integral()) fail("'", type_name(value.kind()), "' object cannot be interpreted as an integer");
  return value.integer();
}

std::string_view string_argument(const Value& value, std::string_view fallback) {
  if (value.is(Kind::kAbsent)) return fallback;
  if (value.is(Kind::kUndefined)) fail(value.undefined_message());
  if (!value.is(Kind::kString)) fail("expected a str argument, got ", type_name(value.kind()));
  return value.string();
}

std::string strip(std::string_view text, const Value& chars, bool left, bool right) {
  const bool spaces = chars.is(Kind::kAbsent) || chars.is(Kind::kNone);
  const std::string_view set = spaces ? std::string_view() : string_argument(chars, "");
  const auto goes = [&](std::string_view one) {
    return spaces ? is_python_space(decode_utf8(one).code_point) : set.find(one) != std::string_view::npos;
  };
  while (left && !text.empty()) {
    const size_t length = decode_utf8(text).length;
    if (!goes(text.substr(0, length))) break;
    text.remove_prefix(length);
  }
  while (right && !text.empty()) {
    const size_t last = last_code_point(text);
    if (!goes(text.substr(last))) break;
    text = text.substr(0, last);
  }
  return std::string(text);
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  const size_t length = decode_utf8(text).length;
  return to_title(text.substr(0, length)) + to_lower(text.substr(length));
}

std::string replace(Evaluator& evaluator, std::string_view text, std::string_view from, std::string_view to,
                    int64_t count) {
  evaluator.charge_search(text, from);
  std::string out;
  const auto add = [&](std::string_view part) {
    evaluator.heap().charge(part.size());
    out += part;
  };
  size_t begin = 0;
  while (count != 0 && begin <= text.size()) {
    const size_t at = text.find(from, begin);
    if (at == std::string_view::npos) break;
    add(text.substr(begin, at - begin));
    add(to);
    begin = at + from.size();
    // An empty `from` matches before every character and at the end.
    if (from.empty()) {
      if (begin == text.size()) return out;
      const size_t length = decode_utf8(text.substr(begin)).length;
      add(text.substr(begin, length));
      begin += length;
    }
    --count;
  }
  add(text.substr(std::min(begin, text.size())));
  return out;
}

std::string join(Evaluator& evaluator, const std::vector<Value>& items, std::string_view separator) {
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string item = to_str(items[i]);
    evaluator.heap().charge(item.size() + separator.size());
    if (i > 0) out += separator;
    out += item;
  }
  return out;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&#34;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string escaped(const Value& value) {
  return value.is_markup() ? value.string() : escape_html(to_str(value));
}

Value escaped_argument(Evaluator& evaluator, const Value& value) {
  if (value.is_number() || value.is_markup()) return value;
  return evaluator.string(escaped(value));
}

Value string_like(Evaluator& evaluator, const Value& source, std::string text) {
  return evaluator.heap().string(std::move(text), source.is_markup());
}

std::optional<int64_t> length_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return 0;
    case Kind::kString: return static_cast<int64_t>(count_code_points(value.string()));
    case Kind::kList:
    case Kind::kTuple: return static_cast<int64_t>(value.items().size());
    case Kind::kDict: return static_cast<int64_t>(value.entries().entries.size());
    case Kind::kLoop: return static_cast<int64_t>(value.loop().items.size());
    default: return std::nullopt;
  }
}

Value tuple_of(Evaluator& evaluator, const Value& first, const Value& second) {
  return evaluator.heap().tuple({first, second});
}

namespace {

Value call_range(Evaluator& evaluator, const Value&, CallArguments& arguments) {
  const bool single = arguments.positional[1].is(Kind::kAbsent);
  const int64_t start = single ? 0 : int_argument(arguments.positional[0], 0);
  const int64_t stop = int_argument(arguments.positional[single ? 0 : 1], 0);
  const int64_t step = int_argument(arguments.positional[2], 1);
  if (step == 0) fail("range() arg 3 must not be zero");
  // The sandbox's limit in Jinja.
  constexpr uint64_t kMaxRange = 100000;
  const bool empty = step > 0 ? start >= stop : start <= stop;
  const uint64_t distance = step > 0 ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                                     : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
  const uint64_t count = empty ? 0 : (distance - 1) / stride + 1;
  if (count > kMaxRange) fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
  evaluator.charge_steps(count / 8);
  std::vector<Value> items;
  items.reserve(count);
  for (uint64_t i = 0; i < count; ++i) items.emplace_back(start + static_cast<int64_t>(i) * step);
  return evaluator.heap().list(std::move(items));
}

DictObject* dict_from(Evaluator& evaluator, const CallArguments& arguments) {
  auto* dict = evaluator.heap().make<DictObject>(evaluator.heap());
  if (arguments.positional.size() > 1)
    fail("expected at most 1 argument, got ", std::to_string(arguments.positional.size()));
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.is(Kind::kDict)) {
      *dict = source.entries();
    } else {
      for (const Value& item : evaluator.iterate(source)) {
        const std::vector<Value> pair = evaluator.iterate(item);
        if (pair.size() != 2) fail("a dictionary update sequence element is not a pair");
        dict->set(pair[0], pair[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) dict->set(Value(name), value);
  evaluator.heap().charge(dict->entries.size() * 2 * sizeof(Value));
  evaluator.charge_steps(dict->entries.size());
  return dict;
}

Value call_namespace(Evaluator& evaluator, const Value&, CallArguments& arguments) {
  return Value::name_space(dict_from(evaluator, arguments));
}

Value call_dict(Evaluator& evaluator, const Value&, CallArguments& arguments) {
  return Value::dict(dict_from(evaluator, arguments));
}

Value call_raise_exception(Evaluator&, const Value&, CallArguments& arguments) {
  fail(to_str(arguments.positional[0]));
}

Value call_strftime_now(Evaluator& evaluator, const Value&, CallArguments& arguments) {
  const std::string format(string_argument(arguments.positional[0], ""));
  if (format.empty()) return evaluator.string("");
  if (format.size() > 1000) fail("strftime_now: the format is longer than 1000 characters");
  // A format may expand to nothing, so a mark tells an empty result from a buffer that is too small.
  std::string buffer(16384, '\0');
  const size_t size = std::strftime(buffer.data(), buffer.size(), (format + "|").c_str(), &evaluator.now());
  if (size == 0) fail("strftime_now: the result is too long");
  return evaluator.string(buffer.substr(0, size - 1));
}

constexpr Builtin kFunctions[] = {
    {"range", 1, "start,stop,step", call_range},
    {"namespace", 0, "*", call_namespace},
    {"dict", 0, "*", call_dict},
    {"raise_exception", 1, "message", call_raise_exception},
    {"strftime_now", 1, "format", call_strftime_now},
};

}  // namespace

const Builtin* find_function(std::string_view name) {
  const auto* it =
      std::find_if(std::begin(kFunctions), std::end(kFunctions), [&](const Builtin& f) { return f.name == name; });
  return it == std::end(kFunctions) ? nullptr : it;
}

}  // namespace millrace::text::jinja
