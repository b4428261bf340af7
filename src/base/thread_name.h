#pragma once

#include <string_view>

namespace millrace {

/// What the system's tools call the calling thread (`top -H`, `perf --sort comm`, a debugger): of the name, what fits
/// into the system's 15 bytes. A thread without one has that of the thread which made it.
void name_thread(std::string_view name);

}  // namespace millrace
