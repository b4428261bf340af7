#include "base/check.h"

#include <fmt/format.h>

#include <cstdlib>

#include "base/stderr_writer.h"

namespace millrace {

void check_failed(const char* file, int line, const char* condition, fmt::string_view format, fmt::format_args args) {
  const std::string message = fmt::vformat(format, args);
  write_stderr(
      fmt::format("{}:{}: CHECK({}) failed{}{}\n", file, line, condition, message.empty() ? "" : ": ", message));
  std::abort();
}

}  // namespace millrace
