#include "base/json_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/json.h"
#include "base/json_parser.h"

namespace millrace {
namespace {

constexpr size_t kMaxPointerDigits = 9;

template <class Integer>
bool read_integer(std::string_view text, Integer& out) {
  Integer value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  if (failure != std::errc() || stop != end) return false;
  out = value;
  return true;
}

/// Returns a step of a JSON pointer with its escapes resolved.
std::string pointer_step(std::string_view written) {
  std::string step;
  for (size_t i = 0; i < written.size(); ++i) {
    const bool is_escape =
        written[i] == '~' && i + 1 < written.size() && (written[i + 1] == '0' || written[i + 1] == '1');
    step += is_escape ? (written[++i] == '0' ? '~' : '/') : written[i];
  }
  return step;
}

std::string line_and_column(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const size_t line_end = before.rfind('\n');
  const size_t column = line_end == std::string_view::npos ? offset : offset - line_end - 1;
  return fmt::format("line {}, column {}", std::ranges::count(before, '\n') + 1, column + 1);
}

}  // namespace

bool JsonValue::is_integer() const {
  int64_t ignored = 0;
  if (get(ignored)) return true;
  const std::string_view text = number_text();
  return !text.empty() && text.find_first_not_of("-0123456789") == std::string_view::npos;
}

bool JsonValue::get(bool& out) const {
  if (!is_bool()) return false;
  out = is_true();
  return true;
}

bool JsonValue::get(std::string_view& out) const {
  if (!is_string()) return false;
  out = node_->view();
  return true;
}

bool JsonValue::get(JsonArray& out) const {
  if (!is_array()) return false;
  out.node_ = node_;
  return true;
}

bool JsonValue::get(JsonObject& out) const {
  if (!is_object()) return false;
  out.node_ = node_;
  return true;
}

bool JsonValue::get(JsonValue& out) const {
  if (is_missing()) return false;
  out = *this;
  return true;
}

bool JsonValue::get(int64_t& out) const {
  return is_number() && read_integer(node_->view(), out);
}

bool JsonValue::get(uint64_t& out) const {
  if (!is_number()) return false;
  const bool is_minus_zero = node_->view() == "-0";
  return read_integer(is_minus_zero ? node_->view().substr(1) : node_->view(), out);
}

bool JsonValue::get(double& out) const {
  if (!is_number()) return false;
  const std::string_view text = node_->view();
  double value = 0;
  const auto [stop, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  // from_chars does not tell what is too large from what is too small.
  if (failure == std::errc::result_out_of_range) value = std::strtod(std::string(text).c_str(), nullptr);
  out = value;
  return true;
}

std::string_view JsonValue::number_text() const {
  return is_number() ? node_->view() : std::string_view();
}

JsonValue JsonValue::operator[](std::string_view key) const {
  JsonObject object;
  return get(object) ? object[key] : JsonValue();
}

JsonValue JsonValue::at_pointer(std::string_view pointer) const {
  JsonValue value = *this;
  while (!pointer.empty()) {
    if (!pointer.starts_with('/')) return {};
    const size_t end = std::min(pointer.find('/', 1), pointer.size());
    const std::string step = pointer_step(pointer.substr(1, end - 1));
    pointer.remove_prefix(end);
    JsonObject object;
    JsonArray array;
    if (value.get(object)) {
      value = object[step];
    } else if (value.get(array)) {
      uint64_t index = 0;
      const bool is_index = step.size() <= kMaxPointerDigits && (step == "0" || !step.starts_with('0')) &&
                            read_integer<uint64_t>(step, index);
      value = is_index ? array.at(index) : JsonValue();
    } else {
      return {};
    }
  }
  return value;
}

JsonArray::Iterator JsonArray::begin() const {
  Iterator begin;
  if (node_ != nullptr) begin.node_ = node_ + 1;
  return begin;
}

JsonArray::Iterator JsonArray::end() const {
  Iterator end;
  if (node_ != nullptr) end.node_ = node_ + node_->span;
  return end;
}

JsonValue JsonArray::at(size_t index) const {
  if (index >= size()) return {};
  Iterator item = begin();
  while (index-- > 0) ++item;
  return *item;
}

JsonObject::Iterator JsonObject::begin() const {
  Iterator begin;
  if (node_ != nullptr) begin.node_ = node_ + 1;
  return begin;
}

JsonObject::Iterator JsonObject::end() const {
  Iterator end;
  if (node_ != nullptr) end.node_ = node_ + node_->span;
  return end;
}

JsonValue JsonObject::operator[](std::string_view key) const {
  for (const JsonMember member : *this) {
    if (member.key == key) return member.value;
  }
  return {};
}

Result<JsonDocument> JsonDocument::parse(std::string_view text, const JsonOptions& options) {
  JsonDocument document;
  try {
    JsonParser(text, options, document).run();
  } catch (const JsonParser::Failure& failure) {
    return make_error(ErrorCode::kData, "{}: {}", line_and_column(text, failure.offset), failure.problem);
  }
  return document;
}

void append_json(std::string& out, JsonValue value) {
  std::string_view text;
  JsonArray array;
  JsonObject object;
  char separator = 0;
  const auto separate = [&] {
    if (separator != 0) out += separator;
    separator = ',';
  };
  if (value.get(text)) {
    append_json_string(out, text);
  } else if (value.get(array)) {
    out += '[';
    for (const JsonValue item : array) {
      separate();
      append_json(out, item);
    }
    out += ']';
  } else if (value.get(object)) {
    out += '{';
    for (const JsonMember member : object) {
      separate();
      append_json_string(out, member.key);
      out += ':';
      append_json(out, member.value);
    }
    out += '}';
  } else if (value.is_number()) {
    out += value.number_text();
  } else {
    out += value.is_bool() ? (value.is_true() ? "true" : "false") : "null";
  }
}

std::string to_json(JsonValue value) {
  std::string out;
  append_json(out, value);
  return out;
}

std::string to_short_json(JsonValue value, size_t max_bytes) {
  std::string text = to_json(value);
  if (text.size() <= max_bytes) return text;
  // The cut is not inside a UTF-8 sequence.
  while (max_bytes > 0 && (static_cast<unsigned char>(text[max_bytes]) & 0xC0u) == 0x80u) --max_bytes;
  return text.substr(0, max_bytes) + "…";
}

bool is_json_number(std::string_view text) {
  const auto skip = [&](std::string_view any_of) {
    const bool is_there = !text.empty() && any_of.find(text.front()) != std::string_view::npos;
    if (is_there) text.remove_prefix(1);
    return is_there;
  };
  const auto skip_digits = [&] {
    const size_t count = std::min(text.find_first_not_of("0123456789"), text.size());
    text.remove_prefix(count);
    return count > 0;
  };
  (void)skip("-");
  if (!skip("0") && !skip_digits()) return false;
  if (skip(".") && !skip_digits()) return false;
  if (skip("eE")) {
    (void)skip("+-");
    if (!skip_digits()) return false;
  }
  return text.empty();
}

}  // namespace millrace
