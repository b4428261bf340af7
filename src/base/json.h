#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

/// Appends `text` as a quoted JSON string. Invalid UTF-8 becomes U+FFFD, so that the output is always valid JSON.
void append_json_string(std::string& out, std::string_view text);

/// Appends a number with the shortest digits that read back the same; NaN and infinities become null.
void append_json_number(std::string& out, double value);
void append_json_number(std::string& out, float value);

/// Writes JSON into a string that the caller owns, without building a tree. Places commas itself.
/// Misuse (a value without a key in an object) is not checked; the writers are small and tested by their output.
class JsonWriter {
 public:
  explicit JsonWriter(std::string& out) : out_(out) {}

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);
  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(bool flag);
  JsonWriter& value(double number);
  JsonWriter& value(float number);
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  JsonWriter& value(T number) {
    return integer(std::signed_integral<T>, static_cast<uint64_t>(static_cast<int64_t>(number)),
                   static_cast<uint64_t>(number));
  }
  JsonWriter& null();
  /// Inserts `json` as it is.
  JsonWriter& raw(std::string_view json);
  template <class T>
  JsonWriter& member(std::string_view name, const T& content) {
    key(name);
    return value(content);
  }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  JsonWriter& integer(bool is_signed, uint64_t as_signed_bits, uint64_t as_unsigned);
  void separate();

  std::string& out_;
  bool need_comma_ = false;
};

}  // namespace millrace
