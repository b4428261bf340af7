#include "base/json.h"

#include <charconv>
#include <cmath>

#include "base/utf8.h"

namespace millrace {
namespace {

template <class T>
void append_floating(std::string& out, T value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value);
  out.append(buffer, end.ptr);
}

void append_escaped(std::string& out, char c) {
  switch (c) {
    case '"': out += "\\\""; return;
    case '\\': out += "\\\\"; return;
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    case '\b': out += "\\b"; return;
    case '\f': out += "\\f"; return;
    default: break;
  }
  static constexpr char kHex[] = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  out += "\\u00";
  out += kHex[byte >> 4];
  out += kHex[byte & 15];
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  size_t done = 0;
  size_t at = 0;
  while (at < text.size()) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte >= 0x80) {
      const DecodedUtf8 step = decode_utf8(text.substr(at));
      if (!step.valid) {
        out.append(text, done, at - done);
        out += kReplacementUtf8;
        done = at + step.length;
      }
      at += step.length;
      continue;
    }
    if (byte < 0x20 || byte == '"' || byte == '\\') {
      out.append(text, done, at - done);
      append_escaped(out, text[at]);
      done = at + 1;
    }
    ++at;
  }
  out.append(text, done);
  out += '"';
}

void append_json_number(std::string& out, double value) {
  append_floating(out, value);
}
void append_json_number(std::string& out, float value) {
  append_floating(out, value);
}

void JsonWriter::separate() {
  if (need_comma_) out_ += ',';
  need_comma_ = true;
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  out_ += bracket;
  need_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  out_ += bracket;
  need_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  append_json_string(out_, name);
  out_ += ':';
  need_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  separate();
  append_json_string(out_, text);
  return *this;
}

JsonWriter& JsonWriter::value(bool flag) {
  separate();
  out_ += flag ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::value(double number) {
  separate();
  append_floating(out_, number);
  return *this;
}

JsonWriter& JsonWriter::value(float number) {
  separate();
  append_floating(out_, number);
  return *this;
}

JsonWriter& JsonWriter::integer(bool is_signed, uint64_t as_signed_bits, uint64_t as_unsigned) {
  separate();
  char buffer[24];
  const auto end = is_signed ? std::to_chars(buffer, buffer + sizeof buffer, static_cast<int64_t>(as_signed_bits))
                             : std::to_chars(buffer, buffer + sizeof buffer, as_unsigned);
  out_.append(buffer, end.ptr);
  return *this;
}

JsonWriter& JsonWriter::null() {
  separate();
  out_ += "null";
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  separate();
  out_ += json;
  return *this;
}

}  // namespace millrace
