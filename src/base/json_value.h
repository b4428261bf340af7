#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

/// The one JSON reader of the program: model files, requests, schemas, and what models write.
namespace millrace {

enum class JsonKind : uint8_t { kMissing, kNull, kBool, kNumber, kString, kArray, kObject };

class JsonArray;
class JsonObject;
class JsonParser;

/// One value of a JsonDocument, which outlives it; as small as a pointer. A default value is kMissing, as is a member
/// that an object lacks. Numbers keep the text that they are written as and are converted on demand.
class JsonValue {
 public:
  JsonValue() = default;

  [[nodiscard]] JsonKind kind() const { return node_ == nullptr ? JsonKind::kMissing : node_->kind; }
  [[nodiscard]] bool is_missing() const { return kind() == JsonKind::kMissing; }
  [[nodiscard]] bool is_null() const { return kind() == JsonKind::kNull; }
  [[nodiscard]] bool is_bool() const { return kind() == JsonKind::kBool; }
  [[nodiscard]] bool is_number() const { return kind() == JsonKind::kNumber; }
  [[nodiscard]] bool is_string() const { return kind() == JsonKind::kString; }
  [[nodiscard]] bool is_array() const { return kind() == JsonKind::kArray; }
  [[nodiscard]] bool is_object() const { return kind() == JsonKind::kObject; }
  [[nodiscard]] bool is_true() const { return is_bool() && node_->size != 0; }
  [[nodiscard]] bool is_false() const { return is_bool() && node_->size == 0; }
  /// Whether it is a number without fraction and exponent, of any size.
  [[nodiscard]] bool is_integer() const;

  /// Each gives whether the value is of that kind, and leaves `out` alone if not.
  [[nodiscard]] bool get(bool& out) const;
  [[nodiscard]] bool get(std::string_view& out) const;
  [[nodiscard]] bool get(JsonArray& out) const;
  [[nodiscard]] bool get(JsonObject& out) const;
  [[nodiscard]] bool get(JsonValue& out) const;  ///< whether it is there
  /// Only integers within the range of the type are one; 1.0 and 1e2 are not.
  [[nodiscard]] bool get(int64_t& out) const;
  [[nodiscard]] bool get(uint64_t& out) const;
  /// Any number, rounded to the nearest double; beyond all doubles an infinity, as in Python.
  [[nodiscard]] bool get(double& out) const;

  /// The text of a number, as it is written; empty for other kinds.
  [[nodiscard]] std::string_view number_text() const;
  /// The first member of this name; kMissing if there is none, or the value is no object.
  [[nodiscard]] JsonValue operator[](std::string_view key) const;
  /// What a JSON pointer (RFC 6901) leads to from here; kMissing if to nothing.
  [[nodiscard]] JsonValue at_pointer(std::string_view pointer) const;

 private:
  friend class JsonArray;
  friend class JsonDocument;
  friend class JsonObject;
  friend class JsonParser;

  /// A container's nodes follow it, members as key and value.
  struct Node {
    JsonKind kind;
    uint32_t size;  ///< bytes of a string or number, items, members, or whether a bool is true
    union {
      const char* text;  ///< of a string or number
      uint64_t span;     ///< nodes of a container, itself included
    };
    [[nodiscard]] std::string_view view() const { return {text, size}; }
  };

  explicit JsonValue(const Node* node) : node_(node) {}
  [[nodiscard]] static const Node* after(const Node* node) {
    const bool is_container = node->kind == JsonKind::kArray || node->kind == JsonKind::kObject;
    return node + (is_container ? node->span : 1);
  }

  const Node* node_ = nullptr;
};

/// The items of an array; empty by default.
class JsonArray {
 public:
  class Iterator {
   public:
    using value_type = JsonValue;
    using difference_type = std::ptrdiff_t;
    JsonValue operator*() const { return JsonValue(node_); }
    Iterator& operator++() {
      node_ = JsonValue::after(node_);
      return *this;
    }
    Iterator operator++(int) {
      const Iterator old = *this;
      ++*this;
      return old;
    }
    bool operator==(const Iterator&) const = default;

   private:
    friend class JsonArray;
    const JsonValue::Node* node_ = nullptr;
  };

  [[nodiscard]] size_t size() const { return node_ == nullptr ? 0 : node_->size; }
  [[nodiscard]] bool empty() const { return size() == 0; }
  [[nodiscard]] Iterator begin() const;
  [[nodiscard]] Iterator end() const;
  /// The item at `index`, found by going through those before it; kMissing beyond the last.
  [[nodiscard]] JsonValue at(size_t index) const;

 private:
  friend class JsonValue;
  const JsonValue::Node* node_ = nullptr;
};

struct JsonMember {
  std::string_view key;
  JsonValue value;
};

/// The members of an object in the order of the text, repeated keys included; empty by default.
class JsonObject {
 public:
  class Iterator {
   public:
    using value_type = JsonMember;
    using difference_type = std::ptrdiff_t;
    JsonMember operator*() const { return {node_->view(), JsonValue(node_ + 1)}; }
    Iterator& operator++() {
      node_ = JsonValue::after(node_ + 1);
      return *this;
    }
    Iterator operator++(int) {
      const Iterator old = *this;
      ++*this;
      return old;
    }
    bool operator==(const Iterator&) const = default;

   private:
    friend class JsonObject;
    const JsonValue::Node* node_ = nullptr;
  };

  [[nodiscard]] size_t size() const { return node_ == nullptr ? 0 : node_->size; }
  [[nodiscard]] bool empty() const { return size() == 0; }
  [[nodiscard]] Iterator begin() const;
  [[nodiscard]] Iterator end() const;
  /// The first member of this name; kMissing if there is none.
  [[nodiscard]] JsonValue operator[](std::string_view key) const;

 private:
  friend class JsonValue;
  const JsonValue::Node* node_ = nullptr;
};

struct JsonOptions {
  /// Containers within containers.
  size_t max_depth = 1024;
  /// NaN, Infinity and -Infinity are numbers, as Python writes them into model files.
  bool accepts_non_finite = false;
};
inline constexpr JsonOptions kModelFileJson{.accepts_non_finite = true};

/// A parsed text with its values. Movable; values stay good. A byte-order mark before the text is skipped.
class JsonDocument {
 public:
  /// An error has the code kData and says in which line and column what was wanted. `text` outlives the document, which
  /// refers to its strings and numbers.
  [[nodiscard]] static Result<JsonDocument> parse(std::string_view text, const JsonOptions& options = {});
  /// A temporary text is none to refer to.
  template <std::same_as<std::string> Text>
  static Result<JsonDocument> parse(Text&& text, const JsonOptions& options = {}) = delete;

  JsonDocument() = default;
  [[nodiscard]] JsonValue root() const { return nodes_.empty() ? JsonValue() : JsonValue(nodes_.data()); }

 private:
  friend class JsonParser;
  std::vector<JsonValue::Node> nodes_;
  std::vector<std::unique_ptr<char[]>> decoded_;  ///< strings that are written with escapes
};

/// The value without space between its parts. Numbers are as they were written.
[[nodiscard]] std::string to_json(JsonValue value);
void append_json(std::string& out, JsonValue value);
/// The first `most` bytes of that, for an error message.
[[nodiscard]] std::string to_short_json(JsonValue value, size_t most);

/// JSON's notation of a number, all of `text`.
[[nodiscard]] bool is_json_number(std::string_view text);

}  // namespace millrace
