#include "gguf/value.h"

#include <array>
#include <cstring>
#include <limits>

namespace millrace::gguf {
namespace {

constexpr std::array<std::string_view, kValueTypeCount> kTypeNames = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};

template <class T>
T read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::optional<int64_t> integer_at(ValueType type, const std::byte* at) {
  switch (type) {
    case ValueType::kU8: return read<uint8_t>(at);
    case ValueType::kI8: return read<int8_t>(at);
    case ValueType::kU16: return read<uint16_t>(at);
    case ValueType::kI16: return read<int16_t>(at);
    case ValueType::kU32: return read<uint32_t>(at);
    case ValueType::kI32: return read<int32_t>(at);
    case ValueType::kI64: return read<int64_t>(at);
    case ValueType::kU64: {
      const auto value = read<uint64_t>(at);
      if (value > uint64_t{std::numeric_limits<int64_t>::max()}) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default: return std::nullopt;
  }
}

std::optional<double> number_at(ValueType type, const std::byte* at) {
  if (type == ValueType::kF32) return read<float>(at);
  if (type == ValueType::kF64) return read<double>(at);
  if (type == ValueType::kU64) return static_cast<double>(read<uint64_t>(at));
  const auto integer = integer_at(type, at);
  if (!integer) return std::nullopt;
  return static_cast<double>(*integer);
}

/// Reads the items of an array of numbers with `item(type, at)`.
template <class T, class Item>
std::optional<std::vector<T>> items(ValueType element, uint64_t count, const std::byte* at, const Item& item) {
  const auto bytes = fixed_bytes(element);
  if (!bytes) return std::nullopt;
  std::vector<T> values;
  values.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    const auto value = item(element, at + i * *bytes);
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  return values;
}

}  // namespace

std::optional<size_t> fixed_bytes(ValueType type) {
  switch (type) {
    case ValueType::kU8:
    case ValueType::kI8:
    case ValueType::kBool: return 1;
    case ValueType::kU16:
    case ValueType::kI16: return 2;
    case ValueType::kU32:
    case ValueType::kI32:
    case ValueType::kF32: return 4;
    case ValueType::kU64:
    case ValueType::kI64:
    case ValueType::kF64: return 8;
    case ValueType::kString:
    case ValueType::kArray: break;
  }
  return std::nullopt;
}

std::string Value::type_name() const {
  const std::string name(kTypeNames[static_cast<size_t>(type_)]);
  return is_array() ? name + " of " + std::string(kTypeNames[static_cast<size_t>(element_)]) : name;
}

std::optional<bool> Value::flag() const {
  if (type_ != ValueType::kBool) return std::nullopt;
  return read<uint8_t>(bytes_.data()) != 0;
}

std::optional<int64_t> Value::integer() const {
  return integer_at(type_, bytes_.data());
}

std::optional<double> Value::number() const {
  return number_at(type_, bytes_.data());
}

std::optional<std::string_view> Value::text() const {
  if (type_ != ValueType::kString) return std::nullopt;
  const auto length = read<uint64_t>(bytes_.data());
  return std::string_view(reinterpret_cast<const char*>(bytes_.data()) + sizeof length, length);
}

std::optional<std::vector<std::string_view>> Value::texts() const {
  if (!is_array() || element_ != ValueType::kString) return std::nullopt;
  std::vector<std::string_view> values;
  values.reserve(count_);
  const std::byte* at = bytes_.data();
  for (uint64_t i = 0; i < count_; ++i) {
    const auto length = read<uint64_t>(at);
    at += sizeof length;
    values.emplace_back(reinterpret_cast<const char*>(at), length);
    at += length;
  }
  return values;
}

std::optional<std::vector<int64_t>> Value::integers() const {
  if (!is_array()) return std::nullopt;
  const auto item = [](ValueType type, const std::byte* at) {
    if (type == ValueType::kBool) return std::optional<int64_t>(read<uint8_t>(at) != 0);
    return integer_at(type, at);
  };
  return items<int64_t>(element_, count_, bytes_.data(), item);
}

std::optional<std::vector<double>> Value::numbers() const {
  if (!is_array()) return std::nullopt;
  return items<double>(element_, count_, bytes_.data(), number_at);
}

}  // namespace millrace::gguf
