#pragma once

#include <cstdlib>
#include <filesystem>

namespace millrace::test {

/// The top of the source tree: where the build found it, or the folder named by MILLRACE_SOURCE_DIR, for programs that
/// run on another machine.
inline std::filesystem::path source_dir() {
  if (const char* given = std::getenv("MILLRACE_SOURCE_DIR")) return given;
  return MILLRACE_SOURCE_DIR;
}

/// The data shared beside the repository (tokenizers, templates, books), or the folder named by MILLRACE_SHARED_DATA.
/// May be absent: tests that need it skip then.
inline std::filesystem::path shared_data_dir() {
  if (const char* given = std::getenv("MILLRACE_SHARED_DATA")) return given;
  return source_dir().parent_path() / "shared" / "data";
}

}  // namespace millrace::test
