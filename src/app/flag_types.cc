#include "app/flag_types.h"

#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>

namespace millrace::app {

CLI::Validator number_range(double low, double high) {
  const auto check = [low, high](std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && low <= value && value <= high) return {};
    return fmt::format("found {}, wanted a number from {} to {}", text, low, high);
  };
  return {check, fmt::format("{} to {}", low, high)};
}

CLI::Validator json_object() {
  const auto check = [](std::string& text) -> std::string {
    simdjson::dom::parser parser;
    simdjson::dom::object object;
    const auto failure = parser.parse(text).get(object);
    if (failure == simdjson::SUCCESS) return {};
    return fmt::format("'{}' is not a JSON object: {}", text.substr(0, 256), simdjson::error_message(failure));
  };
  return {check, ""};
}

CLI::Option* add_name(CLI::App& app, const std::string& flag, const std::vector<std::string>& names,
                      std::function<void(const std::string&)> set, const std::string& help) {
  const auto check = [names](std::string& text) -> std::string {
    if (std::ranges::find(names, text) != names.end()) return {};
    return fmt::format("found '{}', wanted one of {}", text, fmt::join(names, ", "));
  };
  return app.add_option_function<std::string>(flag, std::move(set), help)
      ->check(CLI::Validator(check, ""))
      ->type_name("NAME");
}

}  // namespace millrace::app
