#include "server/openai/field.h"

#include <cmath>

namespace millrace::server::openai {
namespace {

constexpr size_t kMaxDepth = 64;

}  // namespace

std::string describe(Json value) {
  switch (value.type()) {
    case simdjson::dom::element_type::ARRAY: return "an array";
    case simdjson::dom::element_type::OBJECT: return "an object";
    case simdjson::dom::element_type::STRING: return "a string";
    case simdjson::dom::element_type::BOOL: return value.get_bool().value_unsafe() ? "true" : "false";
    case simdjson::dom::element_type::NULL_VALUE: return "null";
    case simdjson::dom::element_type::INT64: return fmt::to_string(value.get_int64().value_unsafe());
    case simdjson::dom::element_type::UINT64: return fmt::to_string(value.get_uint64().value_unsafe());
    case simdjson::dom::element_type::DOUBLE: return fmt::to_string(value.get_double().value_unsafe());
  }
  return "something else";
}

ApiError wrong_type(std::string_view name, Json value, std::string_view wanted) {
  return bad_request(name, "{}: found {}, wanted {}", name, describe(value), wanted);
}

FieldError read_bool(std::string_view name, Json value, bool& out) {
  if (value.get_bool().get(out) != simdjson::SUCCESS) return wrong_type(name, value, "a boolean");
  return std::nullopt;
}

FieldError read_string(std::string_view name, Json value, std::string& out) {
  std::string_view text;
  if (value.get_string().get(text) != simdjson::SUCCESS) return wrong_type(name, value, "a string");
  out = text;
  return std::nullopt;
}

FieldError read_float(std::string_view name, Json value, double low, double high, float& out) {
  double number = 0;
  if (value.get_double().get(number) != simdjson::SUCCESS) return wrong_type(name, value, "a number");
  const bool in_range = number >= low && number <= high;
  if (!in_range) return wrong_type(name, value, fmt::format("a number in [{}, {}]", low, high));
  out = static_cast<float>(number);
  return std::nullopt;
}

FieldError read_alternatives(std::string_view name, Json value, const RequestLimits& limits, int32_t& out) {
  int64_t count = 0;
  const bool is_too_many = value.get_int64().get(count) == simdjson::SUCCESS && count > limits.max_logprobs;
  if (!is_too_many) return read_int(name, value, 0, limits.max_logprobs, out);
  return bad_request(name, "{}: found {}, wanted at most {} (--max-logprobs)", name, count, limits.max_logprobs);
}

FieldError read_integer(std::string_view name, Json value, int64_t low, int64_t high, int64_t& out) {
  int64_t number = 0;
  if (value.get_int64().get(number) != simdjson::SUCCESS) {
    double floating = 0;
    const bool integral = value.type() == simdjson::dom::element_type::DOUBLE &&
                          value.get_double().get(floating) == simdjson::SUCCESS && std::trunc(floating) == floating &&
                          floating >= -0x1p63 && floating < 0x1p63;
    if (!integral) {
      if (value.is_uint64()) return wrong_type(name, value, fmt::format("an integer in [{}, {}]", low, high));
      return wrong_type(name, value, "an integer");
    }
    number = static_cast<int64_t>(floating);
  }
  if (number < low || number > high) {
    return wrong_type(name, value, fmt::format("an integer in [{}, {}]", low, high));
  }
  out = number;
  return std::nullopt;
}

FieldError read_token_ids(std::string_view name, Json value, uint32_t vocab_size, std::vector<TokenId>& out) {
  simdjson::dom::array array;
  if (value.get_array().get(array) != simdjson::SUCCESS) return wrong_type(name, value, "an array of token ids");
  out.clear();
  out.reserve(array.size());
  for (const Json item : array) {
    int64_t id = 0;
    if (item.get_int64().get(id) != simdjson::SUCCESS) return wrong_type(name, item, "a token id");
    if (id < 0 || id >= static_cast<int64_t>(vocab_size)) {
      return bad_request(name, "{}: token id {} is outside the vocabulary of {} tokens", name, id, vocab_size);
    }
    out.push_back(static_cast<TokenId>(id));
  }
  return std::nullopt;
}

FieldError Document::parse(const std::string& body) {
  if (parser_.allocate(std::max<size_t>(body.size(), 256), kMaxDepth) != simdjson::SUCCESS) {
    return ApiError{413, "the request body is too large to parse", ""};
  }
  Json root;
  if (const auto failure = parser_.parse(body).get(root); failure != simdjson::SUCCESS) {
    return bad_request("", "the request body is not valid JSON: {}", simdjson::error_message(failure));
  }
  if (root.get_object().get(object_) != simdjson::SUCCESS) {
    return bad_request("", "the request body is {}, wanted a JSON object", describe(root));
  }
  return std::nullopt;
}

}  // namespace millrace::server::openai
