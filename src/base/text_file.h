#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace millrace {

/// The whole of a file. Errors name it: kNotFound when there is nothing of that name, kData when what is there cannot
/// be read, as a folder or a link to nothing.
[[nodiscard]] Result<std::string> read_text_file(const std::filesystem::path& path);

/// The same of a file that need not be there: empty then.
[[nodiscard]] Result<std::string> read_optional_text_file(const std::filesystem::path& path);

/// Which of the two errors it is that opening `path` failed with `error`, an errno.
[[nodiscard]] ErrorCode open_error_code(const std::filesystem::path& path, int error);

}  // namespace millrace
