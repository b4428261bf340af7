#include "model/field_reader.h"

#include <cmath>
#include <limits>
#include <unordered_set>

namespace millrace::model {
namespace {

Result<void> reject_duplicate_keys_below(std::string_view source, JsonValue element) {
  if (JsonObject object; element.get(object)) return reject_duplicate_keys(source, object);
  JsonArray array;
  if (!element.get(array)) return {};
  for (const JsonValue item : array) RETURN_IF_ERROR(reject_duplicate_keys_below(source, item));
  return {};
}

}  // namespace

std::string json_excerpt(JsonValue element) {
  constexpr size_t kLongest = 60;
  return to_short_json(element, kLongest);
}

Result<JsonObject> parse_object(JsonDocument& document, std::string_view source, std::string_view json,
                                size_t max_depth) {
  if (json.empty()) return make_error(ErrorCode::kData, "{}: is empty, wanted a JSON object", source);
  auto parsed = JsonDocument::parse(json, {.max_depth = max_depth, .accepts_non_finite = true});
  if (!parsed) return make_error(ErrorCode::kData, "{}: is not valid JSON: {}", source, parsed.error().message);
  document = std::move(*parsed);
  JsonObject object;
  if (!document.root().get(object))
    return make_error(ErrorCode::kData, "{}: is {}, wanted a JSON object", source, json_excerpt(document.root()));
  return object;
}

Result<void> reject_duplicate_keys(std::string_view source, JsonObject object) {
  std::unordered_set<std::string_view> keys;
  for (const auto member : object) {
    if (!keys.insert(member.key).second)
      return make_error(ErrorCode::kData, "{}: {} is given twice", source, member.key);
    RETURN_IF_ERROR(reject_duplicate_keys_below(fmt::format("{}: {}", source, member.key), member.value));
  }
  return {};
}

Result<JsonObject> parse_config_object(JsonDocument& document, std::string_view source, std::string_view json) {
  Result<JsonObject> object = parse_object(document, source, json, kMaxConfigNesting);
  if (!object) return object.error();
  RETURN_IF_ERROR(reject_duplicate_keys(source, *object));
  return object;
}

std::optional<JsonValue> FieldReader::find(std::string_view key) const {
  read_.emplace(key);
  JsonValue element;
  if (!object_[key].get(element) || element.is_null()) return std::nullopt;
  return element;
}

bool FieldReader::has(std::string_view key) const {
  return find(key).has_value();
}

bool FieldReader::has_key(std::string_view key) const {
  read_.emplace(key);
  return !object_[key].is_missing();
}

void FieldReader::fail(std::string message) {
  if (!error_) error_ = Error{ErrorCode::kData, source_ + ": " + std::move(message)};
}

void FieldReader::fail_found(std::string_view key, JsonValue found, std::string_view wanted) {
  fail_with("{} is {}, wanted {}", key, json_excerpt(found), wanted);
}

std::optional<int32_t> FieldReader::optional_integer(std::string_view key, int32_t low, int32_t high) {
  const auto element = find(key);
  if (!element) return std::nullopt;
  int64_t value = 0;
  if (!element->get(value) || value < low || value > high) {
    fail_found(key, *element, fmt::format("an integer from {} to {}", low, high));
    return low;
  }
  return static_cast<int32_t>(value);
}

int32_t FieldReader::integer_or(std::string_view key, int32_t fallback, int32_t low, int32_t high) {
  return optional_integer(key, low, high).value_or(fallback);
}

int32_t FieldReader::integer(std::string_view key, int32_t low, int32_t high) {
  const auto value = optional_integer(key, low, high);
  if (!value) fail_with("{} is missing, wanted an integer from {} to {}", key, low, high);
  return value.value_or(low);
}

std::optional<double> FieldReader::optional_number(std::string_view key, double low, double high) {
  const auto element = find(key);
  if (!element) return std::nullopt;
  double value = 0.0;
  const bool read = element->is_number() && element->get(value);
  if (!read || !std::isfinite(value) || value < low || value > high) {
    fail_found(key, *element, fmt::format("a number from {} to {}", low, high));
    return low;
  }
  return value;
}

double FieldReader::number_or(std::string_view key, double fallback, double low, double high) {
  return optional_number(key, low, high).value_or(fallback);
}

double FieldReader::number(std::string_view key, double low, double high) {
  const auto value = optional_number(key, low, high);
  if (!value) fail_with("{} is missing, wanted a number from {} to {}", key, low, high);
  return value.value_or(low);
}

bool FieldReader::flag_or(std::string_view key, bool fallback) {
  const auto element = find(key);
  if (!element) return fallback;
  bool value = fallback;
  if (!element->get(value)) fail_found(key, *element, "true or false");
  return value;
}

std::string FieldReader::text_or(std::string_view key, std::string_view fallback) {
  const auto element = find(key);
  if (!element) return std::string(fallback);
  std::string_view value;
  if (!element->get(value)) {
    fail_found(key, *element, "a string");
    return std::string(fallback);
  }
  return std::string(value);
}

std::string FieldReader::text(std::string_view key) {
  if (!has(key)) fail_with("{} is missing, wanted a string", key);
  return text_or(key, "");
}

std::vector<TokenId> FieldReader::token_ids(std::string_view key) {
  const auto element = find(key);
  if (!element) return {};
  std::vector<TokenId> ids;
  const auto take = [&](JsonValue item) {
    int64_t id = 0;
    if (!item.get(id) || id < 0 || id > INT32_MAX)
      fail_found(key, *element, "a token id or a list of token ids");
    else
      ids.push_back(static_cast<TokenId>(id));
  };
  JsonArray list;
  if (!element->get(list)) {
    take(*element);
    return ids;
  }
  for (const JsonValue item : list) take(item);
  return ids;
}

template <class Item, class Read>
std::vector<Item> FieldReader::list_of(std::string_view key, std::string_view wanted, const Read& read) {
  const auto element = find(key);
  std::vector<Item> items;
  if (!element) return items;
  JsonArray list;
  if (!element->get(list)) {
    fail_found(key, *element, wanted);
    return items;
  }
  for (const JsonValue each : list) {
    Item item{};
    if (!read(each, item)) fail_found(key, *element, wanted);
    items.push_back(std::move(item));
  }
  return items;
}

std::vector<std::string> FieldReader::strings(std::string_view key) {
  return list_of<std::string>(key, "a list of strings", [](JsonValue item, std::string& text) {
    std::string_view value;
    if (!item.get(value)) return false;
    text = value;
    return true;
  });
}

std::vector<int32_t> FieldReader::integers(std::string_view key, int32_t low, int32_t high) {
  const std::string wanted = fmt::format("a list of integers from {} to {}", low, high);
  return list_of<int32_t>(key, wanted, [low, high](JsonValue item, int32_t& number) {
    number = low;
    int64_t value = 0;
    if (!item.get(value) || value < low || value > high) return false;
    number = static_cast<int32_t>(value);
    return true;
  });
}

std::vector<double> FieldReader::numbers(std::string_view key, double low, double high) {
  const std::string wanted = fmt::format("a list of numbers from {} to {}", low, high);
  return list_of<double>(key, wanted, [low, high](JsonValue item, double& number) {
    number = low;
    double value = 0.0;
    if (!item.is_number() || !item.get(value) || !std::isfinite(value) || value < low || value > high) return false;
    number = value;
    return true;
  });
}

std::vector<double> FieldReader::unbounded_numbers(std::string_view key, double low) {
  const std::string wanted = fmt::format("a list of numbers from {} up", low);
  return list_of<double>(key, wanted, [low](JsonValue item, double& number) {
    number = low;
    std::string_view text;
    JsonObject spelled;
    const bool is_text = item.get(text) || (item.get(spelled) && spelled["__float__"].get(text));
    double value = 0.0;
    if (is_text && text == "Infinity")
      value = std::numeric_limits<double>::infinity();
    else if (!item.is_number() || !item.get(value) || !(value >= low))
      return false;
    number = value;
    return true;
  });
}

std::optional<JsonObject> FieldReader::object(std::string_view key) {
  const auto element = find(key);
  if (!element) return std::nullopt;
  JsonObject value;
  if (!element->get(value)) {
    fail_found(key, *element, "an object");
    return std::nullopt;
  }
  return value;
}

}  // namespace millrace::model
