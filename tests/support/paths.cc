#include "support/paths.h"

#include <cstdlib>

namespace millrace::test {

std::filesystem::path source_dir() {
  if (const char* given = std::getenv("MILLRACE_SOURCE_DIR")) return given;
  return MILLRACE_SOURCE_DIR;
}

std::filesystem::path shared_data_dir() {
  if (const char* given = std::getenv("MILLRACE_SHARED_DATA")) return given;
  return source_dir().parent_path() / "shared" / "data";
}

}  // namespace millrace::test
