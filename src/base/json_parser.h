#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/json_value.h"

namespace millrace {

/// Private to json_value: fills one JsonDocument from one text, without recursion.
class JsonParser {
 public:
  /// Thrown by run(): where the text is none, and what is wrong there.
  struct Failure {
    size_t offset;
    std::string problem;
  };

  JsonParser(std::string_view text, const JsonOptions& options, JsonDocument& document);
  void run();

 private:
  using Node = JsonValue::Node;

  void open(JsonKind kind);
  /// Ends the innermost container, whose bracket is next.
  void close();
  /// Reads a scalar, or the beginning of a container up to where its first value begins. Returns whether a value has
  /// ended.
  [[nodiscard]] bool begin_value();
  /// Goes from the end of a value to the beginning of the next. Returns false at the end of the text.
  [[nodiscard]] bool go_to_next_value();
  void read_key();
  void read_string();
  void decode(const char* from, const char* to);
  [[nodiscard]] char32_t read_escape(const char*& at) const;
  [[nodiscard]] char32_t read_hex(const char*& at) const;
  void read_number();
  void read_digits();
  void read_word();
  void add(JsonKind kind, size_t size, const char* text);
  [[nodiscard]] char* room_for(size_t bytes);

  void skip_space();
  [[nodiscard]] char next() const { return at_ == end_ ? '\0' : *at_; }
  [[nodiscard]] bool is_in_object() const { return document_.nodes_[innermost_].kind == JsonKind::kObject; }
  [[noreturn]] void fail_at(const char* at, std::string problem) const;
  [[noreturn]] void fail_wanting(std::string_view wanted) const;

  const std::string_view text_;
  const JsonOptions& options_;
  JsonDocument& document_;
  const char* at_;
  const char* end_;
  size_t depth_ = 0;
  size_t innermost_ = 0;  ///< the node of the innermost open container, whose span is its parent's node meanwhile
  uint32_t count_ = 0;    ///< what the innermost container has so far; of those around it their nodes say
  char* room_ = nullptr;
  size_t room_bytes_ = 0;
};

}  // namespace millrace
