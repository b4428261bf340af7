#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

namespace millrace::app {

/// Of a flag: a number from `low` to `high`. CLI11's own range lets NaN pass.
inline CLI::Validator number_range(double low, double high) {
  const auto check = [low, high](std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && low <= value && value <= high) return {};
    return fmt::format("found {}, wanted a number from {} to {}", text, low, high);
  };
  return {check, fmt::format("in [{} - {}]", low, high)};
}

}  // namespace millrace::app
