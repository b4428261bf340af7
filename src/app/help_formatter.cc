#include "app/help_formatter.h"

#include <fmt/format.h>

#include <sstream>

namespace millrace::app {
namespace {

constexpr size_t kLeftColumns = 34;
constexpr size_t kColumns = 110;

/// Returns "[1 to 64; default 8; or $NAME]", or nothing where there is nothing to say.
std::string details(const CLI::Option& option, const std::string& bounds) {
  std::string text = bounds;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : "; ") + part; };
  if (option.get_required()) add("required");
  if (!option.get_default_str().empty()) add("default " + option.get_default_str());
  if (!option.get_envname().empty()) add("or $" + option.get_envname());
  return text.empty() ? "" : " [" + text + "]";
}

/// Returns `text` broken into lines of the right column, all but the first indented.
std::string wrap(const std::string& text) {
  std::istringstream words(text);
  std::string lines;
  size_t column = kLeftColumns;
  for (std::string word; words >> word;) {
    if (column > kLeftColumns && column + 1 + word.size() > kColumns) {
      lines += "\n" + std::string(kLeftColumns, ' ');
      column = kLeftColumns;
    } else if (column > kLeftColumns) {
      lines += ' ';
      ++column;
    }
    lines += word;
    column += word.size();
  }
  return lines;
}

}  // namespace

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  std::string left = "  " + make_option_name(option, is_positional);
  std::string bounds;
  if (option->get_type_size() != 0 && !is_positional) {
    const std::string type = option->get_type_name();  // the placeholder, and after a colon what the check says
    const size_t colon = std::min(type.find(':'), type.size());
    left += " " + type.substr(0, colon);
    if (colon < type.size()) bounds = type.substr(colon + 1);
  }
  const std::string right = wrap(option->get_description() + details(*option, bounds));
  if (left.size() + 2 > kLeftColumns) return fmt::format("{}\n{:{}}{}\n", left, "", kLeftColumns, right);
  return fmt::format("{:{}}{}\n", left, kLeftColumns, right);
}

}  // namespace millrace::app
