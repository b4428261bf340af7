#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/ids.h"
#include "base/json_value.h"
#include "base/result.h"

namespace millrace::model {

/// Bounds of config.json, generation_config.json and similar files, in bytes and levels.
inline constexpr size_t kMaxConfigBytes = size_t{1} << 24;
inline constexpr size_t kMaxConfigNesting = 32;

/// Typed reads of the fields of one JSON object. The first fault is kept; every later read still returns a value within
/// its range. A parser therefore reads straight down and checks `error()` once at the end. A null field counts as
/// absent.
class FieldReader {
 public:
  /// `source` begins every message ("config.json", "config.json: rope_scaling"). `object` must outlive the reader.
  FieldReader(std::string source, JsonObject object) : source_(std::move(source)), object_(object) {}

  [[nodiscard]] bool has(std::string_view key) const;
  [[nodiscard]] std::optional<JsonValue> find(std::string_view key) const;
  /// Returns whether the field is present, even when null.
  [[nodiscard]] bool has_key(std::string_view key) const;
  /// Returns whether a field has been asked for, by any of the other functions.
  [[nodiscard]] bool was_read(std::string_view key) const { return read_.contains(std::string(key)); }
  int32_t integer(std::string_view key, int32_t low, int32_t high);
  int32_t integer_or(std::string_view key, int32_t fallback, int32_t low, int32_t high);
  std::optional<int32_t> optional_integer(std::string_view key, int32_t low, int32_t high);
  double number(std::string_view key, double low, double high);
  double number_or(std::string_view key, double fallback, double low, double high);
  std::optional<double> optional_number(std::string_view key, double low, double high);
  bool flag_or(std::string_view key, bool fallback);
  std::string text(std::string_view key);
  std::string text_or(std::string_view key, std::string_view fallback);
  /// Reads one id or a list of ids, none negative; empty when absent.
  std::vector<TokenId> token_ids(std::string_view key);
  std::vector<std::string> strings(std::string_view key);
  /// Reads a list of integers; empty when absent.
  std::vector<int32_t> integers(std::string_view key, int32_t low, int32_t high);
  /// Reads a list of numbers; empty when absent.
  std::vector<double> numbers(std::string_view key, double low, double high);
  /// Reads a list of numbers from `low` up, infinity included; empty when absent. Writers spell infinity as the number
  /// or the text Infinity, or as {"__float__": "Infinity"}.
  std::vector<double> unbounded_numbers(std::string_view key, double low);
  /// Reads a nested object; none when absent. A field of another type is a fault.
  std::optional<JsonObject> object(std::string_view key);

  /// Records a fault that the caller has found; `message` follows the source.
  void fail(std::string message);
  template <class... Args>
  void fail_with(fmt::format_string<Args...> format, Args&&... args) {
    fail(fmt::format(format, std::forward<Args>(args)...));
  }
  /// Takes over the fault of a nested object's reader.
  void take_error_of(const FieldReader& nested) {
    if (!error_) error_ = nested.error_;
  }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }
  [[nodiscard]] const std::string& source() const { return source_; }

 private:
  void fail_found(std::string_view key, JsonValue found, std::string_view wanted);
  /// Reads a list whose items `read(value, item)` converts; it returns false for an item of another kind.
  template <class Item, class Read>
  std::vector<Item> list_of(std::string_view key, std::string_view wanted, const Read& read);

  std::string source_;
  JsonObject object_;
  std::optional<Error> error_;
  mutable std::unordered_set<std::string> read_;
};

/// Returns an element as JSON text for a message, cut after 60 bytes.
[[nodiscard]] std::string json_excerpt(JsonValue element);

/// Parses `json`, the text of a model file, as one object with at most `max_depth` levels. The object lives as long as
/// `document` and `json`. Errors are kData.
[[nodiscard]] Result<JsonObject> parse_object(JsonDocument& document, std::string_view source, std::string_view json,
                                              size_t max_depth);

/// Refuses (kData) an object that repeats a key at any depth, since parsers differ in the value that they use.
[[nodiscard]] Result<void> reject_duplicate_keys(std::string_view source, JsonObject object);

/// Parses the text of a configuration file as parse_object() does, and refuses repeated keys.
[[nodiscard]] Result<JsonObject> parse_config_object(JsonDocument& document, std::string_view source,
                                                     std::string_view json);

}  // namespace millrace::model
