#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace millrace::model {

/// A regular file mapped read-only; the destructor unmaps it. The first access to a page reads it from the disk.
class MappedFile {
 public:
  /// Maps `path`. Errors: kNotFound, or kData when it is not a regular file or cannot be mapped.
  [[nodiscard]] static Result<std::unique_ptr<MappedFile>> open(const std::filesystem::path& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  /// Releases the memory of the whole pages in `part` of the file. A later access reads them again.
  void release(std::span<const std::byte> part) const;

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

/// Reads a whole file of at most `limit` bytes. Errors: kNotFound, kTooLarge, kData.
[[nodiscard]] Result<std::string> read_file(const std::filesystem::path& path, size_t limit);

}  // namespace millrace::model
