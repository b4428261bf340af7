#include "server/openai/schema.h"

namespace millrace::server::openai {

void SchemaWriter::type(std::string_view name) {
  json_.key("type");
  if (!nullable_) {
    json_.value(name);
    return;
  }
  json_.begin_array().value(name).value("null").end_array();
}

void SchemaWriter::integer(int64_t low, int64_t high) {
  type("integer");
  json_.member("minimum", low).member("maximum", high);
}

void SchemaWriter::number(double low, double high) {
  type("number");
  json_.member("minimum", low).member("maximum", high);
}

void SchemaWriter::words(std::span<const std::string_view> words) {
  json_.key("enum").begin_array();
  for (const std::string_view word : words) json_.value(word);
  if (nullable_) json_.null();
  json_.end_array();
}

void SchemaWriter::token_ids(uint32_t vocab_size) {
  type("array");
  json_.key("items").begin_object().member("type", "integer").member("minimum", 0);
  json_.member("maximum", int64_t{vocab_size} - 1).end_object();
}

}  // namespace millrace::server::openai
