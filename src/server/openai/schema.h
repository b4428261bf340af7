#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/json.h"
#include "server/openai/request.h"

/// Private to the parsers of requests: their tables as JSON Schema.
namespace millrace::server::openai {

/// Writes what a field takes as the members of one JSON Schema object, which its user opens and closes.
class SchemaWriter {
 public:
  SchemaWriter(std::string& out, const RequestLimits& limits) : json_(out), limits_(limits) {}

  [[nodiscard]] JsonWriter& json() { return json_; }
  [[nodiscard]] const RequestLimits& limits() const { return limits_; }
  /// Allows null, which stands for the default of a member that is not required.
  void set_nullable(bool nullable) { nullable_ = nullable; }
  [[nodiscard]] bool nullable() const { return nullable_; }

  /// Writes "type", with null where that is allowed.
  void type(std::string_view name);
  void integer(int64_t low, int64_t high);
  void number(double low, double high);
  /// Writes "enum", with null where that is allowed.
  void words(std::span<const std::string_view> words);
  /// Writes the schema of an array of ids below the vocabulary's size.
  void token_ids(uint32_t vocab_size);

 private:
  JsonWriter json_;
  const RequestLimits& limits_;
  bool nullable_ = false;
};

/// Appends the part of append_request_schemas for the routes that do not generate.
void describe_utility_requests(SchemaWriter& schema);
/// Appends the part of append_request_schemas for the routes that give vectors and scores.
void describe_pooling_requests(SchemaWriter& schema);

/// Appends "Name": {schema} for the body of every request, for "components"/"schemas" of an OpenAPI document.
void append_request_schemas(std::string& out, const RequestLimits& limits);

}  // namespace millrace::server::openai
