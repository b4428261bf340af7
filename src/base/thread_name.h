#pragma once

#include <string_view>

namespace millrace {

/// Names the calling thread for `top -H`, `perf --sort comm` and debuggers. The system keeps the first 15 bytes. A new
/// thread inherits the name of its creator.
void name_thread(std::string_view name);

}  // namespace millrace
