#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/enum_names.h"

/// Declares flags whose values become enums, durations and bounded numbers as they are parsed. The help of each shows
/// its bounds and its default.
namespace millrace::app {

/// Returns a check for a number from `low` to `high`. Unlike CLI11's own range it refuses NaN.
[[nodiscard]] CLI::Validator number_range(double low, double high);
/// Returns a check for a JSON object.
[[nodiscard]] CLI::Validator json_object();

/// Adds a flag that takes one of `names`; `set` gets the one that was given.
CLI::Option* add_name(CLI::App& app, const std::string& flag, const std::vector<std::string>& names,
                      std::function<void(const std::string&)> set, const std::string& help);

/// Returns the names of an enum as a list, with those of `extra` before them.
template <NamedEnum E>
[[nodiscard]] std::vector<std::string> names_with(std::vector<std::string> extra = {}) {
  for (const EnumName<E>& each : enum_names(E{})) extra.emplace_back(each.name);
  return extra;
}

/// Adds a flag that takes a name of an enum.
template <NamedEnum E>
CLI::Option* add_choice(CLI::App& app, const std::string& flag, E& target, const std::string& help) {
  return add_name(
             app, flag, names_with<E>(), [&target](const std::string& name) { target = *parse_enum<E>(name); }, help)
      ->default_str(std::string(enum_name(target)));
}

/// Adds a flag that takes a name of an enum, or "auto" for no value.
template <NamedEnum E>
CLI::Option* add_optional_choice(CLI::App& app, const std::string& flag, std::optional<E>& target,
                                 const std::string& help) {
  return add_name(
             app, flag, names_with<E>({"auto"}), [&target](const std::string& name) { target = parse_enum<E>(name); },
             help)
      ->default_str(target ? std::string(enum_name(*target)) : "auto");
}

struct NumberRange {
  double low = 0;
  double high = 0;
};

/// Adds a flag that takes a number. Its help shows the number that `target` has now as the default.
template <class Number>
CLI::Option* add_number(CLI::App& app, const std::string& flag, Number& target, NumberRange range,
                        const std::string& help) {
  return app.add_option(flag, target, help)
      ->check(number_range(range.low, range.high))
      ->type_name("N")
      ->capture_default_str();
}

/// Adds a flag that takes a number of seconds.
template <class Rep, class Period>
CLI::Option* add_seconds(CLI::App& app, const std::string& flag, std::chrono::duration<Rep, Period>& target,
                         NumberRange range, const std::string& help) {
  using Target = std::chrono::duration<Rep, Period>;
  using Seconds = std::chrono::duration<double>;
  return app
      .add_option_function<double>(
          flag, [&target](double seconds) { target = std::chrono::duration_cast<Target>(Seconds(seconds)); }, help)
      ->check(number_range(range.low, range.high))
      ->type_name("SECONDS")
      ->default_str(fmt::format("{}", Seconds(target).count()));
}

/// Adds a flag that takes a size in units of `unit_bytes`.
template <class Bytes>
CLI::Option* add_size(CLI::App& app, const std::string& flag, Bytes& target, Bytes unit_bytes, NumberRange range,
                      const std::string& help) {
  return app
      .add_option_function<Bytes>(
          flag, [&target, unit_bytes](Bytes count) { target = count * unit_bytes; }, help)
      ->check(number_range(range.low, range.high))
      ->type_name("N")
      ->default_str(fmt::format("{}", target / unit_bytes));
}

}  // namespace millrace::app
