#pragma once

#include <fmt/core.h>

#include <string_view>

#include "base/enum_names.h"

/// Process-wide structured logging through spdlog. Only one translation unit includes spdlog.
namespace millrace::log {

enum class Level { kTrace, kDebug, kInfo, kWarn, kError, kOff };

inline constexpr EnumName<Level> kLevelNames[] = {
    {Level::kTrace, "trace"}, {Level::kDebug, "debug"}, {Level::kInfo, "info"},
    {Level::kWarn, "warn"},   {Level::kError, "error"}, {Level::kOff, "off"},
};
constexpr std::span<const EnumName<Level>> enum_names(Level) {
  return kLevelNames;
}

/// Sets level and format. `json_lines` writes one JSON object per line. Call once, before other threads log.
void configure(Level level, bool json_lines);
[[nodiscard]] bool enabled(Level level);
void write(Level level, fmt::string_view format, fmt::format_args args);

template <class... Args>
void at(Level level, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(level)) write(level, format, fmt::make_format_args(args...));
}
template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  at(Level::kDebug, format, std::forward<Args>(args)...);
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  at(Level::kInfo, format, std::forward<Args>(args)...);
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  at(Level::kWarn, format, std::forward<Args>(args)...);
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  at(Level::kError, format, std::forward<Args>(args)...);
}

}  // namespace millrace::log
