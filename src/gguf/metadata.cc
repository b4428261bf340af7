#include "gguf/metadata.h"

#include <cmath>

namespace millrace::gguf {
namespace {

/// Returns get(value) of a key that may be absent.
template <class Get>
auto get_or_fail(const Metadata& metadata, std::string_view key, std::string_view wanted, const Get& get)
    -> decltype(get(Value())) {
  const Value* value = metadata.find(key);
  if (value == nullptr) return std::nullopt;
  auto found = get(*value);
  if (!found) metadata.fail("{} is of type {}, wanted {}", key, value->type_name(), wanted);
  return found;
}

}  // namespace

const Value* Metadata::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::vector<std::string_view> Metadata::keys() const {
  std::vector<std::string_view> keys;
  for (const auto& [key, value] : values_) keys.push_back(key);
  return keys;
}

std::optional<bool> Metadata::flag(std::string_view key) const {
  return get_or_fail(*this, key, "bool", [](const Value& value) { return value.flag(); });
}

std::optional<int64_t> Metadata::integer(std::string_view key, int64_t min, int64_t max) const {
  const auto found = get_or_fail(*this, key, "an integer", [](const Value& value) { return value.integer(); });
  if (found && (*found < min || *found > max)) fail("{} is {}, wanted {} to {}", key, *found, min, max);
  return found;
}

std::optional<double> Metadata::number(std::string_view key) const {
  const auto found = get_or_fail(*this, key, "a number", [](const Value& value) { return value.number(); });
  if (found && !std::isfinite(*found)) fail("{} is {}, wanted a finite number", key, *found);
  return found;
}

std::optional<std::string_view> Metadata::text(std::string_view key) const {
  return get_or_fail(*this, key, "string", [](const Value& value) { return value.text(); });
}

std::optional<std::vector<std::string_view>> Metadata::texts(std::string_view key) const {
  return get_or_fail(*this, key, "array of string", [](const Value& value) { return value.texts(); });
}

std::optional<std::vector<int64_t>> Metadata::integers(std::string_view key) const {
  return get_or_fail(*this, key, "an array of integers", [](const Value& value) { return value.integers(); });
}

std::optional<std::vector<double>> Metadata::numbers(std::string_view key) const {
  return get_or_fail(*this, key, "an array of numbers", [](const Value& value) { return value.numbers(); });
}

int64_t Metadata::required_integer(std::string_view key, int64_t min, int64_t max) const {
  const auto found = integer(key, min, max);
  if (!found) fail("{} is missing, wanted an integer", key);
  return *found;
}

}  // namespace millrace::gguf
