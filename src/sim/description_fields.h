#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string_view>

#include "base/json_value.h"
#include "base/result.h"

/// Readers of the fields of a description. Errors name the field and the wanted value.
namespace millrace::sim {

/// Bound of numbers in a description: far beyond real ones, and small enough for all that is computed from them.
inline constexpr double kMaxNumber = 1e9;

[[nodiscard]] inline Result<double> read_number(std::string_view name, JsonValue value, double most = kMaxNumber) {
  double found = 0;
  if (!value.get(found) || found < 0 || found > most) {
    return make_error(ErrorCode::kData, "{}: wanted a number from 0 to {:.0f}", name, most);
  }
  return found;
}

template <class Integer>
[[nodiscard]] Result<void> read_integer(std::string_view name, JsonValue value, uint32_t most, Integer& into) {
  uint64_t found = 0;
  if (!value.get(found) || found > most) {
    return make_error(ErrorCode::kData, "{}: wanted a whole number from 0 to {}", name, most);
  }
  into = static_cast<Integer>(found);
  return {};
}

}  // namespace millrace::sim
