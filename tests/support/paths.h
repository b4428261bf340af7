#pragma once

#include <filesystem>

namespace millrace::test {

/// Returns the top of the source tree: where the build found it, or the folder that MILLRACE_SOURCE_DIR names, for
/// programs that run on another machine.
std::filesystem::path source_dir();

/// Returns the data shared beside the repository (tokenizers, templates, books), or the folder that
/// MILLRACE_SHARED_DATA names. It may be absent: tests that need it skip then.
std::filesystem::path shared_data_dir();

}  // namespace millrace::test
