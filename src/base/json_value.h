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

/// Parsed JSON of model files, requests, schemas, and text that models write.
namespace millrace {

enum class JsonKind : uint8_t { kMissing, kNull, kBool, kNumber, kString, kArray, kObject };

class JsonArray;
class JsonObject;
class JsonParser;

/// One value of a JsonDocument, which outlives it; as small as a pointer. A default value is kMissing, as is a member
/// that an object lacks. Numbers keep their text and are converted on demand.
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
  /// Returns whether it is a number without fraction and exponent, of any size.
  [[nodiscard]] bool is_integer() const;

  /// Stores the value if it has the type of `out`. Returns whether it has.
  [[nodiscard]] bool get(bool& out) const;
  [[nodiscard]] bool get(std::string_view& out) const;
  [[nodiscard]] bool get(JsonArray& out) const;
  [[nodiscard]] bool get(JsonObject& out) const;
  [[nodiscard]] bool get(JsonValue& out) const;  ///< fails for a missing value only
  /// Stores an integer within the range of the type. Fails for 1.0 and 1e2.
  [[nodiscard]] bool get(int64_t& out) const;
  [[nodiscard]] bool get(uint64_t& out) const;
  /// Stores any number, rounded to the nearest double. A number beyond all doubles becomes an infinity, as in Python.
  [[nodiscard]] bool get(double& out) const;

  /// Returns what identifies the value among all values of its document. Null for a missing value.
  [[nodiscard]] const void* identity() const { return node_; }
  /// Returns the text of a number as it is written. Empty for other kinds.
  [[nodiscard]] std::string_view number_text() const;
  /// Returns the first member of this name. kMissing if there is none, or the value is not an object.
  [[nodiscard]] JsonValue operator[](std::string_view key) const;
  /// Returns the value that a JSON pointer (RFC 6901) names, or kMissing.
  [[nodiscard]] JsonValue at_pointer(std::string_view pointer) const;

 private:
  friend class JsonArray;
  friend class JsonDocument;
  friend class JsonObject;
  friend class JsonParser;

  /// A value in the document's list. The nodes of a container follow it, members as key and value.
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
  /// Returns the item at `index`, or kMissing beyond the last. Time grows with `index`.
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
  /// Returns the first member of this name, or kMissing.
  [[nodiscard]] JsonValue operator[](std::string_view key) const;
  /// Returns what identifies the object among all values of its document, as JsonValue::identity does.
  [[nodiscard]] const void* identity() const { return node_; }

 private:
  friend class JsonValue;
  const JsonValue::Node* node_ = nullptr;
};

struct JsonOptions {
  /// Limits the nesting of containers.
  size_t max_depth = 1024;
  /// Accepts NaN, Infinity and -Infinity as numbers, as Python writes them into model files.
  bool accepts_non_finite = false;
};
inline constexpr JsonOptions kModelFileJson{.accepts_non_finite = true};

/// A parsed text and its values, owned by whoever reads it. Values stay valid when the document moves. A byte-order
/// mark before the text is skipped.
class JsonDocument {
 public:
  /// Parses `text`, which must outlive the document: strings and numbers refer to it. An error has the code kData and
  /// names line, column, what was found and what was wanted.
  [[nodiscard]] static Result<JsonDocument> parse(std::string_view text, const JsonOptions& options = {});
  /// Refuses a temporary text, which the document cannot refer to.
  template <std::same_as<std::string> Text>
  static Result<JsonDocument> parse(Text&& text, const JsonOptions& options = {}) = delete;

  JsonDocument() = default;
  [[nodiscard]] JsonValue root() const { return nodes_.empty() ? JsonValue() : JsonValue(nodes_.data()); }

 private:
  friend class JsonParser;
  std::vector<JsonValue::Node> nodes_;
  std::vector<std::unique_ptr<char[]>> decoded_;  ///< strings that are written with escapes
};

/// Returns the value as JSON without white space. Numbers keep their text.
[[nodiscard]] std::string to_json(JsonValue value);
void append_json(std::string& out, JsonValue value);
/// Returns the first `max_bytes` of the value as JSON, for an error message.
[[nodiscard]] std::string to_short_json(JsonValue value, size_t max_bytes);

/// Returns whether all of `text` is one number of JSON, without white space.
[[nodiscard]] bool is_json_number(std::string_view text);

}  // namespace millrace
