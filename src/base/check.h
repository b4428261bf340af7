#pragma once

#include <fmt/core.h>

namespace millrace {

/// Prints the failed condition, its source location and the message on stderr, and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, fmt::string_view format = "",
                               fmt::format_args args = {});

namespace detail {
template <class... Args>
[[noreturn]] void check_failed_with(const char* file, int line, const char* condition,
                                    fmt::format_string<Args...> format, Args&&... args) {
  check_failed(file, line, condition, format, fmt::make_format_args(args...));
}
[[noreturn]] inline void check_failed_with(const char* file, int line, const char* condition) {
  check_failed(file, line, condition);
}
}  // namespace detail

}  // namespace millrace

// Test programs include Catch2, which has a CHECK of its own.
#undef CHECK
/// Aborts on a programmer error, in every build. CHECK(condition) or CHECK(condition, "found {}, wanted {}", a, b).
#define CHECK(condition, ...)                                                                           \
  do {                                                                                                  \
    if (!(condition)) [[unlikely]]                                                                      \
      ::millrace::detail::check_failed_with(__FILE__, __LINE__, #condition __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)
