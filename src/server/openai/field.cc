#include "server/openai/field.h"

#include <algorithm>
#include <cmath>

namespace millrace::server::openai {
namespace {

constexpr size_t kMaxDepth = 512;
constexpr size_t kMaxShownDigits = 64;

/// Reads a whole number however it is written, such as 2.0 or 2e0. Returns false for any other value, and where 64 bits
/// cannot hold it.
bool read_whole(Json value, int64_t& out) {
  if (value.get(out)) return true;
  double floating = 0;
  if (!value.get(floating) || std::trunc(floating) != floating || value.is_integer()) return false;
  if (floating < -0x1p63 || floating >= 0x1p63) return false;
  out = static_cast<int64_t>(floating);
  return true;
}

bool is_whole(Json value) {
  double floating = 0;
  return value.is_integer() || (value.get(floating) && std::trunc(floating) == floating);
}

}  // namespace

std::string describe(Json value) {
  switch (value.kind()) {
    case JsonKind::kArray: return "an array";
    case JsonKind::kObject: return "an object";
    case JsonKind::kString: return "a string";
    case JsonKind::kMissing: return "nothing";
    case JsonKind::kBool:
    case JsonKind::kNull:
    case JsonKind::kNumber: break;
  }
  return to_short_json(value, kMaxShownDigits);
}

ApiError wrong_type(std::string_view name, Json value, std::string_view wanted) {
  return bad_request(name, "{}: found {}, wanted {}", name, describe(value), wanted);
}

FieldError read_bool(std::string_view name, Json value, bool& out) {
  if (!value.get(out)) return wrong_type(name, value, "a boolean");
  return std::nullopt;
}

FieldError read_string(std::string_view name, Json value, std::string& out) {
  std::string_view text;
  if (!value.get(text)) return wrong_type(name, value, "a string");
  out = text;
  return std::nullopt;
}

FieldError read_word(std::string_view name, Json value, std::span<const std::string_view> words,
                     std::string_view& out) {
  std::string_view text;
  if (!value.get(text)) return wrong_type(name, value, "a string");
  const auto known = std::ranges::find(words, text);
  if (known != words.end()) {
    out = *known;
    return std::nullopt;
  }
  std::string wanted;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) wanted += i + 1 == words.size() ? " or " : ", ";
    wanted += words[i];
  }
  return bad_request(name, "{}: found '{}', wanted {}", name, text.substr(0, 64), wanted);
}

FieldError read_float(std::string_view name, Json value, double low, double high, float& out) {
  double number = 0;
  if (!value.get(number)) return wrong_type(name, value, "a number");
  const bool in_range = number >= low && number <= high;
  if (!in_range) return wrong_type(name, value, fmt::format("a number in [{}, {}]", low, high));
  out = static_cast<float>(number);
  return std::nullopt;
}

FieldError read_alternatives(std::string_view name, Json value, const RequestLimits& limits, int32_t& out) {
  int64_t count = 0;
  const bool is_too_many = value.get(count) && count > limits.max_logprobs;
  if (!is_too_many) return read_int(name, value, 0, limits.max_logprobs, out);
  return bad_request(name, "{}: found {}, wanted at most {} (--max-logprobs)", name, count, limits.max_logprobs);
}

FieldError read_integer(std::string_view name, Json value, int64_t low, int64_t high, int64_t& out) {
  if (!is_whole(value)) return wrong_type(name, value, "an integer");
  int64_t number = 0;
  if (!read_whole(value, number) || number < low || number > high) {
    return wrong_type(name, value, fmt::format("an integer in [{}, {}]", low, high));
  }
  out = number;
  return std::nullopt;
}

FieldError read_token_ids(std::string_view name, Json value, uint32_t vocab_size, std::vector<TokenId>& out) {
  JsonArray array;
  if (!value.get(array)) return wrong_type(name, value, "an array of token ids");
  out.clear();
  out.reserve(array.size());
  for (const Json item : array) {
    int64_t id = 0;
    if (!is_whole(item)) return wrong_type(name, item, "a token id");
    if (!read_whole(item, id)) {
      return bad_request(name, "{}: token id {} is outside the vocabulary of {} tokens", name, describe(item),
                         vocab_size);
    }
    if (id < 0 || id >= static_cast<int64_t>(vocab_size)) {
      return bad_request(name, "{}: token id {} is outside the vocabulary of {} tokens", name, id, vocab_size);
    }
    out.push_back(static_cast<TokenId>(id));
  }
  return std::nullopt;
}

FieldError Document::parse(std::string_view body) {
  auto parsed = JsonDocument::parse(body, {.max_depth = kMaxDepth});
  if (parsed.has_error()) {
    return bad_request("", "the request body is not valid JSON: {}", parsed.error().message);
  }
  document_ = std::move(*parsed);
  if (!document_.root().get(object_)) {
    return bad_request("", "the request body is {}, wanted a JSON object", describe(document_.root()));
  }
  return std::nullopt;
}

}  // namespace millrace::server::openai
