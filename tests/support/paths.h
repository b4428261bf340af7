#pragma once

#include <filesystem>

namespace millrace::test {

/// Returns the top of the source tree. MILLRACE_SOURCE_DIR names it for programs that run on another machine than the
/// build.
std::filesystem::path source_dir();

/// Returns the folder of optional test data (tokenizers, templates, books): the one that MILLRACE_SHARED_DATA names, or
/// `shared/data` next to the repository. Tests that need absent data skip.
std::filesystem::path shared_data_dir();

}  // namespace millrace::test
