#include "text/chat_template/jinja_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/json_value.h"
#include "base/utf8.h"

namespace millrace::text::jinja {
namespace {

constexpr int kMaxJsonDepth = 100;
constexpr size_t kMaxJsonBytes = size_t{64} << 20;

Value convert_number(JsonValue json, Heap& heap) {
  int64_t integer = 0;
  double number = 0;
  if (json.get(integer)) return Value(integer);
  (void)json.get(number);
  if (json.is_integer()) return heap.big_integer(json.number_text(), number);
  return Value(number);
}

Value convert(JsonValue json, Heap& heap, int depth) {
  if (depth > kMaxJsonDepth) fail("the JSON is nested more than 100 deep");
  std::string_view text;
  JsonArray array;
  JsonObject object;
  if (json.get(text)) return heap.string(std::string(text));
  if (json.is_number()) return convert_number(json, heap);
  if (json.is_bool()) return Value(json.is_true());
  if (json.get(array)) {
    std::vector<Value> items;
    for (const JsonValue item : array) items.push_back(convert(item, heap, depth + 1));
    return heap.list(std::move(items));
  }
  if (!json.get(object)) return Value();
  auto* dict = heap.make<DictObject>(heap);
  for (const JsonMember member : object) {
    heap.charge(2 * sizeof(Value));
    dict->set(heap.string(std::string(member.key)), convert(member.value, heap, depth + 1));
  }
  return Value::dict(dict);
}

void append_escape(std::string& out, char32_t c) {
  if (c < 0x10000) {
    out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
  } else {
    const uint32_t offset = static_cast<uint32_t>(c) - 0x10000;
    out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (offset >> 10), 0xDC00 + (offset & 0x3FF));
  }
}

void append_string(std::string_view text, bool ensure_ascii, std::string& out) {
  out += '"';
  while (!text.empty()) {
    const DecodedUtf8 step = decode_utf8(text);
    const char32_t c = step.valid ? step.code_point : U'\uFFFD';
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (c < 0x20 || (ensure_ascii && c > 0x7E && c != 0x7F)) {
          append_escape(out, c);
        } else {
          append_utf8(out, c);
        }
    }
    text.remove_prefix(step.length);
  }
  out += '"';
}

class Dumper {
 public:
  Dumper(const JsonStyle& style, std::string& out) : style_(style), out_(out) {}

  void dump(const Value& value, int depth) {
    if (depth > kMaxJsonDepth || out_.size() > kMaxJsonBytes) fail("tojson: the value is too deep or too long");
    switch (value.kind()) {
      case Kind::kNone: out_ += "null"; return;
      case Kind::kBool: out_ += value.boolean() ? "true" : "false"; return;
      case Kind::kInt: out_ += std::to_string(value.integer()); return;
      case Kind::kBigInt: out_ += value.digits(); return;
      case Kind::kFloat: out_ += number(value.number()); return;
      case Kind::kString: append_string(value.string(), style_.ensure_ascii, out_); return;
      case Kind::kList:
      case Kind::kTuple: return dump_list(value.items(), depth);
      case Kind::kDict: return dump_dict(value.entries(), depth);
      default: fail("Object of type ", type_name(value.kind()), " is not JSON serializable");
    }
  }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_repr(value);
  }

  static std::string key_text(const Value& key) {
    switch (key.kind()) {
      case Kind::kString: return key.string();
      case Kind::kNone: return "null";
      case Kind::kBool: return key.boolean() ? "true" : "false";
      case Kind::kInt: return std::to_string(key.integer());
      case Kind::kBigInt: return key.digits();
      case Kind::kFloat: return number(key.number());
      default: fail("keys must be str, int, float, bool or None, not ", type_name(key.kind()));
    }
  }

  void new_line(int depth) {
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < depth; ++i) out_ += *style_.indent;
  }

  void dump_list(const std::vector<Value>& items, int depth) {
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line(depth + 1);
      dump(items[i], depth + 1);
    }
    if (!items.empty()) new_line(depth);
    out_ += ']';
  }

  void dump_dict(const DictObject& dict, int depth) {
    std::vector<std::pair<Value, Value>> entries = dict.entries;
    if (style_.sort_keys) {
      merge_sort(entries, [](const Value& a, const Value& b) { return compare(a, b, "<") < 0; });
    }
    out_ += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line(depth + 1);
      append_string(key_text(entries[i].first), style_.ensure_ascii, out_);
      out_ += style_.key_separator;
      dump(entries[i].second, depth + 1);
    }
    if (!entries.empty()) new_line(depth);
    out_ += '}';
  }

  const JsonStyle& style_;
  std::string& out_;
};

}  // namespace

Value parse_json(std::string_view json, std::string_view what, Heap& heap) {
  const auto document = JsonDocument::parse(json, kModelFileJson);
  if (document.has_error()) fail(what, ": ", document.error().message);
  return convert(document->root(), heap, 0);
}

std::string dump_json(const Value& value, const JsonStyle& style) {
  std::string out;
  Dumper(style, out).dump(value, 0);
  return out;
}

}  // namespace millrace::text::jinja
