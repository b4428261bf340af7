#include "text/chat_template/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/utf8.h"
#include "text/unicode.h"

namespace millrace::text::jinja {
namespace {

constexpr size_t kIndexedDictSize = 8;
/// Deeper values (or cycles, which templates can make) cannot be printed or compared.
constexpr int kMaxValueDepth = 100;
constexpr size_t kMaxPrintedBytes = size_t{64} << 20;

void check_depth(int depth) {
  if (depth > kMaxValueDepth) fail("a value is nested more than 100 deep");
}

std::string repr_of_string(std::string_view text) {
  const bool double_quotes = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  std::string out(1, quote);
  while (!text.empty()) {
    const DecodedUtf8 step = decode_utf8(text);
    const auto c = step.valid ? step.code_point : U'\uFFFD';
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      append_utf8(out, c);
    } else {
      const auto code = static_cast<uint32_t>(c);
      out += c < 0x100     ? fmt::format("\\x{:02x}", code)
             : c < 0x10000 ? fmt::format("\\u{:04x}", code)
                           : fmt::format("\\U{:08x}", code);
    }
    text.remove_prefix(step.length);
  }
  return out += quote;
}

void append_repr(const Value& value, std::string& out, int depth);

void append_items(const Value& list, std::string& out, int depth) {
  const std::vector<Value>& items = list.items();
  for (size_t i = 0; i < items.size(); ++i) {
    list.charge_steps(1);
    if (i > 0) out += ", ";
    append_repr(items[i], out, depth);
  }
}

void append_dict(const DictObject& dict, std::string& out, int depth) {
  out += '{';
  bool first = true;
  for (const auto& [key, item] : dict.entries) {
    dict.heap->charge_steps(1);
    if (!first) out += ", ";
    first = false;
    append_repr(key, out, depth);
    out += ": ";
    append_repr(item, out, depth);
  }
  out += '}';
}

void append_repr(const Value& value, std::string& out, int depth) {
  check_depth(depth);
  if (out.size() > kMaxPrintedBytes) fail("a value is longer than 64 MiB when printed");
  switch (value.kind()) {
    case Kind::kString:
      out += value.is_markup() ? "Markup(" + repr_of_string(value.string()) + ')' : repr_of_string(value.string());
      return;
    case Kind::kUndefined: out += "Undefined"; return;
    case Kind::kList:
      out += '[';
      append_items(value, out, depth + 1);
      out += ']';
      return;
    case Kind::kTuple:
      out += '(';
      append_items(value, out, depth + 1);
      out += value.items().size() == 1 ? ",)" : ")";
      return;
    case Kind::kDict: append_dict(value.entries(), out, depth + 1); return;
    case Kind::kNamespace:
      out += "<Namespace ";
      append_dict(value.entries(), out, depth + 1);
      out += '>';
      return;
    default: out += to_str(value);
  }
}

bool equals_at(const Value& a, const Value& b, int depth);

/// Steps of comparing two values, without those of what they hold.
uint64_t comparison_steps(const Value& a, const Value& b) {
  const bool are_strings = a.is(Kind::kString) && b.is(Kind::kString);
  return 1 + (are_strings ? std::min(a.string().size(), b.string().size()) / 128 : 0);
}

bool items_equal(const Value& a, const Value& b, int depth) {
  const std::vector<Value>& x = a.items();
  const std::vector<Value>& y = b.items();
  if (x.size() != y.size()) return false;
  for (size_t i = 0; i < x.size(); ++i) {
    a.charge_steps(comparison_steps(x[i], y[i]));
    if (!equals_at(x[i], y[i], depth)) return false;
  }
  return true;
}

bool is_negative(const Value& value) {
  return value.is(Kind::kBigInt) ? value.digits().starts_with('-') : value.number() < 0;
}

/// Compares two integers, at least one of which exceeds 64 bits.
int compare_big(const Value& a, const Value& b) {
  const bool negative = is_negative(a);
  if (negative != is_negative(b)) return negative ? -1 : 1;
  int order = 0;
  if (a.kind() != b.kind()) {
    order = a.is(Kind::kBigInt) ? 1 : -1;
  } else if (a.digits().size() != b.digits().size()) {
    order = a.digits().size() < b.digits().size() ? -1 : 1;
  } else {
    order = a.digits().compare(b.digits());
  }
  return negative ? -order : order;
}

bool are_big(const Value& a, const Value& b) {
  return (a.is(Kind::kBigInt) && (b.is(Kind::kBigInt) || b.is_integral())) || (b.is(Kind::kBigInt) && a.is_integral());
}

bool equals_at(const Value& a, const Value& b, int depth) {
  check_depth(depth);
  if (are_big(a, b)) return compare_big(a, b) == 0;
  if (a.is_integral() && b.is_integral()) return a.integer() == b.integer();
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kAbsent:
    case Kind::kUndefined:
    case Kind::kNone: return true;
    case Kind::kString: return a.string() == b.string();
    case Kind::kList:
    case Kind::kTuple: return items_equal(a, b, depth + 1);
    case Kind::kDict: {
      if (a.entries().entries.size() != b.entries().entries.size()) return false;
      for (const auto& [key, item] : a.entries().entries) {
        const Value* other = b.entries().find(key);
        a.charge_steps(other == nullptr ? 1 : comparison_steps(item, *other));
        if (other == nullptr || !equals_at(item, *other, depth + 1)) return false;
      }
      return true;
    }
    default: return a.address() == b.address();
  }
}

int compare_at(const Value& a, const Value& b, std::string_view op, int depth) {
  check_depth(depth);
  const auto order = [](auto x, auto y) { return x < y ? -1 : (y < x ? 1 : 0); };
  if (are_big(a, b)) return order(compare_big(a, b), 0);
  if (a.is_integral() && b.is_integral()) return order(a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return order(a.number(), b.number());
  if (a.is(Kind::kString) && b.is(Kind::kString)) return order(a.string().compare(b.string()), 0);
  if (a.is_sequence() && a.kind() == b.kind()) {
    const auto& x = a.items();
    const auto& y = b.items();
    for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
      a.charge_steps(comparison_steps(x[i], y[i]));
      if (!equals_at(x[i], y[i], depth + 1)) return compare_at(x[i], y[i], op, depth + 1);
    }
    return order(x.size(), y.size());
  }
  for (const Value& side : {a, b}) {
    if (side.is(Kind::kUndefined)) fail(side.undefined_message());
  }
  fail("'", op, "' not supported between instances of '", type_name(a.kind()), "' and '", type_name(b.kind()), "'");
}

}  // namespace

Value Value::undefined(Symbol name, Kind owner) {
  Value value(Kind::kUndefined);
  value.data_.string = name;
  value.owner_ = owner;
  return value;
}

std::vector<Value>& Value::items() const {
  return data_.list->items;
}

void Value::charge_steps(uint64_t count) const {
  if (is_sequence()) data_.list->heap->charge_steps(count);
  if (is(Kind::kDict)) data_.dict->heap->charge_steps(count);
}

std::string Value::undefined_message() const {
  if (data_.string == nullptr) return "the value is undefined";
  const std::string name = "'" + data_.string->text + "'";
  if (owner_ == Kind::kAbsent) return name + " is undefined";
  const std::string owner = owner_ == Kind::kNone ? "None" : std::string(type_name(owner_)) + " object";
  return "'" + owner + "' has no attribute " + name;
}

size_t DictObject::index_of(std::string_view key) const {
  if (entries.size() > kIndexedDictSize) {
    const auto it = index_.find(key);
    return it == index_.end() ? entries.size() : it->second;
  }
  size_t at = 0;
  while (at < entries.size() && !(entries[at].first.is(Kind::kString) && entries[at].first.string() == key)) ++at;
  return at;
}

size_t DictObject::index_of(const Value& key) const {
  if (key.is(Kind::kString)) return index_of(std::string_view(key.string()));
  heap->charge_steps(entries.size() / 8);
  size_t at = 0;
  while (at < entries.size() && !equals(entries[at].first, key)) ++at;
  return at;
}

const Value* DictObject::find(std::string_view key) const {
  const size_t at = index_of(key);
  return at == entries.size() ? nullptr : &entries[at].second;
}

const Value* DictObject::find(const Value& key) const {
  const size_t at = index_of(key);
  return at == entries.size() ? nullptr : &entries[at].second;
}

void DictObject::set(const Value& key, const Value& value) {
  if (key.is_sequence() || key.is(Kind::kDict)) {
    if (!key.is(Kind::kTuple)) fail("unhashable type: '", type_name(key.kind()), "'");
  }
  const size_t at = index_of(key);
  if (at < entries.size()) {
    entries[at].second = value;
    return;
  }
  entries.emplace_back(key, value);
  if (entries.size() <= kIndexedDictSize) return;
  // The index starts with the first entry too many and holds views into the keys, which the heap keeps.
  if (index_.empty()) {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].first.is(Kind::kString)) index_.emplace(entries[i].first.string(), i);
    }
  } else if (key.is(Kind::kString)) {
    index_.emplace(key.string(), entries.size() - 1);
  }
}

bool DictObject::erase(const Value& key) {
  const size_t at = index_of(key);
  if (at == entries.size()) return false;
  entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(at));
  index_.clear();
  for (size_t i = 0; entries.size() > kIndexedDictSize && i < entries.size(); ++i) {
    if (entries[i].first.is(Kind::kString)) index_.emplace(entries[i].first.string(), i);
  }
  return true;
}

void Heap::charge(size_t bytes) {
  if (bytes > left_) fail("the template uses more memory than it may");
  left_ -= bytes;
}

void Heap::charge_steps(uint64_t count) {
  if (count > steps_left_) fail("the template takes more steps than it may");
  steps_left_ -= count;
}

ListObject* Heap::list_object(std::vector<Value> items) {
  charge(items.size() * sizeof(Value));
  auto* object = make<ListObject>(*this);
  object->items = std::move(items);
  return object;
}

bool is_true(const Value& value) {
  switch (value.kind()) {
    case Kind::kAbsent:
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool: return value.boolean();
    case Kind::kInt: return value.integer() != 0;
    case Kind::kFloat: return value.number() != 0;
    case Kind::kString: return !value.string().empty();
    case Kind::kList:
    case Kind::kTuple: return !value.items().empty();
    case Kind::kDict: return !value.entries().entries.empty();
    default: return true;
  }
}

bool equals(const Value& a, const Value& b) {
  return equals_at(a, b, 0);
}
int compare(const Value& a, const Value& b, std::string_view op) {
  return compare_at(a, b, op, 0);
}

void merge_sort(std::vector<std::pair<Value, Value>>& pairs,
                const std::function<bool(const Value&, const Value&)>& less) {
  std::vector<std::pair<Value, Value>> merged(pairs.size());
  for (size_t width = 1; width < pairs.size(); width *= 2) {
    for (size_t begin = 0; begin < pairs.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, pairs.size());
      const size_t end = std::min(begin + 2 * width, pairs.size());
      size_t left = begin;
      size_t right = middle;
      for (size_t at = begin; at < end; ++at) {
        const bool takes_right = left == middle || (right < end && less(pairs[right].first, pairs[left].first));
        merged[at] = pairs[takes_right ? right++ : left++];
      }
    }
    pairs.swap(merged);
  }
}

std::string_view type_name(Kind kind) {
  switch (kind) {
    case Kind::kAbsent:
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "NoneType";
    case Kind::kBool: return "bool";
    case Kind::kInt:
    case Kind::kBigInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return "str";
    case Kind::kList: return "list";
    case Kind::kTuple: return "tuple";
    case Kind::kDict: return "dict";
    case Kind::kNamespace: return "Namespace";
    case Kind::kLoop: return "LoopContext";
    case Kind::kMacro: return "Macro";
    case Kind::kMethod: return "builtin_function_or_method";
    case Kind::kFunction: return "function";
  }
  return "object";
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string scientific(buffer, end);
  const int exponent = std::stoi(scientific.substr(scientific.find('e') + 1));
  if (exponent < -4 || exponent >= 16) return scientific;
  std::string fixed(buffer, std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

std::string to_str(const Value& value) {
  switch (value.kind()) {
    case Kind::kAbsent:
    case Kind::kUndefined: return {};
    case Kind::kNone: return "None";
    case Kind::kBool: return value.boolean() ? "True" : "False";
    case Kind::kInt: return std::to_string(value.integer());
    case Kind::kBigInt: return value.digits();
    case Kind::kFloat: return float_repr(value.number());
    case Kind::kString: return value.string();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kNamespace: return to_repr(value);
    default: return "<" + std::string(type_name(value.kind())) + ">";
  }
}

std::string to_repr(const Value& value) {
  std::string out;
  append_repr(value, out, 0);
  return out;
}

}  // namespace millrace::text::jinja
