#include "app/flag_types.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/json_value.h"

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
    const auto document = JsonDocument::parse(text);
    if (document && document->root().is_object()) return {};
    return fmt::format("'{}' is not a JSON object{}{}", text.substr(0, 256), document ? "" : ": ",
                       document ? "" : document.error().message);
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
