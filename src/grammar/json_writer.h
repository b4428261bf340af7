#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json_value.h"
#include "grammar/json_notation.h"
#include "grammar/text_language.h"

namespace millrace::grammar {

/// Writes values as a notation has them. Functions throw an ErrorException without a position for strings and names
/// that the notation cannot write. Lives while one schema is read.
class JsonWriter {
 public:
  explicit JsonWriter(const JsonNotation& notation) : notation_(notation) {}

  [[nodiscard]] std::string value(JsonValue value);
  /// Returns a key without what follows it.
  [[nodiscard]] std::string key(std::string_view name);
  /// Returns a key of the outermost object and what follows it.
  [[nodiscard]] std::string argument_key(std::string_view name);
  /// Returns the names of keys without quotes.
  [[nodiscard]] const TextLanguage& bare_keys();

 private:
  [[nodiscard]] std::string string(std::string_view text) const;

  const JsonNotation notation_;
  std::optional<TextLanguage> bare_keys_;  // made on first use
};

}  // namespace millrace::grammar
