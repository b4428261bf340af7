#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace millrace {

/// Returns the content of a file. Errors name it: kNotFound when nothing has that name, kData when it cannot be read,
/// as a folder or a link to nothing.
[[nodiscard]] Result<std::string> read_text_file(const std::filesystem::path& path);

/// Reads a file as read_text_file() does. Returns an empty text if there is no such file.
[[nodiscard]] Result<std::string> read_optional_text_file(const std::filesystem::path& path);

/// Returns the Error for a failure to open `path` with `error`, an errno.
[[nodiscard]] ErrorCode open_error_code(const std::filesystem::path& path, int error);

}  // namespace millrace
