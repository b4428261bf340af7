#pragma once

#include <simdjson.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/json_value.h"

namespace millrace {

/// Fills one JsonDocument from one text with simdjson's on-demand parser. JsonDocument::parse owns it for one call, on
/// one thread.
class JsonParser {
 public:
  /// The exception of run(): where the text is not JSON, and what is wrong there.
  struct Failure {
    size_t offset;
    std::string problem;
  };

  JsonParser(std::string_view text, const JsonOptions& options, JsonDocument& document);
  void run();

 private:
  using Node = JsonValue::Node;

  /// Starts simdjson on the padded copy.
  void start();
  void read_value(simdjson::ondemand::value value);
  void read_object(simdjson::ondemand::object object, size_t offset);
  void read_array(simdjson::ondemand::array array, size_t offset);
  void read_key(simdjson::ondemand::field& field);
  /// Reads a string, whose `token` runs up to the next token. Value: a simdjson value or document.
  template <class Value>
  void read_string(Value& value, std::string_view token);
  /// Reads a number, true, false or null. `token` runs up to the next token.
  void read_scalar(std::string_view token);
  /// Returns the container's node. Fails beyond the depth limit, at the container's offset.
  [[nodiscard]] size_t open(JsonKind kind, size_t offset);
  void close(size_t node, uint32_t size);
  void add(JsonKind kind, std::string_view text);
  /// Adds a string that simdjson has decoded, in memory of the document.
  void add_decoded(std::string_view text);

  /// Returns the part of the original text that equals `copied`, a part of the padded copy.
  [[nodiscard]] std::string_view original(std::string_view copied) const;
  [[nodiscard]] size_t offset_of(std::string_view part) const;
  /// Returns the offset of simdjson's current token, or of the one at which it stopped.
  [[nodiscard]] size_t location();
  /// Throws a Failure at location() unless there is no error.
  void check(simdjson::error_code error, std::string_view wanted);
  /// Throws a Failure at location(), where an object does not go on as JSON does.
  [[noreturn]] void fail_in_object();
  [[noreturn]] void fail_at(size_t offset, std::string_view problem) const;
  [[noreturn]] void fail_wanting(size_t offset, std::string_view wanted) const;

  const std::string_view text_;
  const JsonOptions& options_;
  JsonDocument& result_;
  simdjson::padded_string copy_;  ///< the text, with the padding that simdjson reads
  simdjson::ondemand::parser parser_;
  simdjson::ondemand::document document_;
  size_t depth_ = 0;
  size_t scalar_end_ = 0;  ///< offset of the token after the last string, number or word that was a value
  char* room_ = nullptr;   ///< free memory for decoded strings
  size_t room_bytes_ = 0;
};

}  // namespace millrace
