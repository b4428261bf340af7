#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/enum_names.h"

/// Types of tool parameters. They tell a string from a number where a format writes values without quotes.
namespace millrace::text {

/// A type of JSON values, by its name in schemas.
enum class ValueType : uint8_t { kString, kNull, kBoolean, kInteger, kNumber, kArray, kObject };
inline constexpr EnumName<ValueType> kValueTypeNames[] = {
    {ValueType::kString, "string"},   {ValueType::kNull, "null"},     {ValueType::kBoolean, "boolean"},
    {ValueType::kInteger, "integer"}, {ValueType::kNumber, "number"}, {ValueType::kArray, "array"},
    {ValueType::kObject, "object"},
};
constexpr std::span<const EnumName<ValueType>> enum_names(ValueType) {
  return kValueTypeNames;
}

/// The types that a value may have, from its schema; none: any type. A set of bits, passed by value.
class ValueTypes {
 public:
  constexpr ValueTypes() = default;
  constexpr ValueTypes(std::initializer_list<ValueType> types) {
    for (const ValueType type : types) add(type);
  }

  constexpr void add(ValueType type, bool if_true = true) {
    if (if_true) bits_ |= bit(type);
  }
  constexpr void remove(ValueType type) { bits_ &= static_cast<uint8_t>(~bit(type)); }
  constexpr ValueTypes& operator|=(ValueTypes other) {
    bits_ |= other.bits_;
    return *this;
  }
  constexpr ValueTypes& operator&=(ValueTypes other) {
    bits_ &= other.bits_;
    return *this;
  }
  [[nodiscard]] constexpr bool has(ValueType type) const { return (bits_ & bit(type)) != 0; }
  [[nodiscard]] constexpr bool has_others_than_string() const { return (bits_ & ~bit(ValueType::kString)) != 0; }
  [[nodiscard]] constexpr bool is_any() const { return bits_ == 0; }
  friend constexpr bool operator==(ValueTypes, ValueTypes) = default;

 private:
  [[nodiscard]] static constexpr uint8_t bit(ValueType type) {
    return static_cast<uint8_t>(1u << static_cast<unsigned>(type));
  }

  uint8_t bits_ = 0;
};
inline constexpr ValueTypes kStringOnly{ValueType::kString};

/// Returns the JSON of a value that is written without quotes: the first of the types that it can have, else a string.
[[nodiscard]] std::string value_to_json(std::string_view value, ValueTypes types);

/// The types of the parameters of a request's tools.
class ParameterTypes {
 public:
  /// Adds a tool. `schema` is the JSON schema of its arguments.
  void add(const std::string& tool, std::string_view schema);
  /// Returns kStringOnly for a parameter that the schema does not describe.
  [[nodiscard]] ValueTypes of(const std::string& tool, const std::string& parameter) const;
  /// Returns the types of parameters that the tool's schema does not name.
  [[nodiscard]] ValueTypes of_others(const std::string& tool) const;

 private:
  void add_others(const std::string& tool, ValueTypes types);

  std::map<std::pair<std::string, std::string>, ValueTypes> types_;
  std::map<std::string, ValueTypes> additional_;  // of the parameters that a tool's properties do not name
};

}  // namespace millrace::text
