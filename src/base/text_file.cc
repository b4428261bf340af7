#include "base/text_file.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

namespace millrace {
namespace {

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

Error unreadable(ErrorCode code, const std::filesystem::path& path, int error) {
  return make_error(code, "{}: cannot be read: {}", path.string(), std::generic_category().message(error));
}

}  // namespace

ErrorCode open_error_code(const std::filesystem::path& path, int error) {
  std::error_code ignored;
  return error == ENOENT && !std::filesystem::is_symlink(path, ignored) ? ErrorCode::kNotFound : ErrorCode::kData;
}

Result<std::string> read_text_file(const std::filesystem::path& path) {
  const std::unique_ptr<std::FILE, Closer> file(std::fopen(path.c_str(), "rb"));
  if (!file) {
    const int error = errno;
    return unreadable(open_error_code(path, error), path, error);
  }
  std::string text;
  std::array<char, 64u << 10> block;
  while (const size_t count = std::fread(block.data(), 1, block.size(), file.get())) text.append(block.data(), count);
  if (std::ferror(file.get()) != 0) return unreadable(ErrorCode::kData, path, errno);
  return text;
}

Result<std::string> read_optional_text_file(const std::filesystem::path& path) {
  auto text = read_text_file(path);
  if (text.has_error() && text.error().code == ErrorCode::kNotFound) return std::string();
  return text;
}

}  // namespace millrace
