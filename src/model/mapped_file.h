#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace millrace::model {

/// A regular file mapped read-only; unmapped with its owner. Pages are read from the disk when they are touched.
class MappedFile {
 public:
  /// Errors: kNotFound, or kData for something that is not a regular file or cannot be mapped.
  [[nodiscard]] static Result<std::unique_ptr<MappedFile>> open(const std::filesystem::path& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  /// Lets go of the memory that holds whole pages of `part` of the file; who touches them again gets them back.
  void release(std::span<const std::byte> part) const;

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

/// The whole of a file of at most `limit` bytes. Errors: kNotFound, kTooLarge, kData.
[[nodiscard]] Result<std::string> read_file(const std::filesystem::path& path, size_t limit);

}  // namespace millrace::model
