#pragma once

#include <filesystem>
#include <optional>

#include "base/result.h"

namespace millrace::hub {

/// An exclusive lock on a file, held against other processes until it is destroyed. Python's library takes the same
/// kind (flock) on the same files.
class FileLock {
 public:
  /// Locks `path`, which is created with its folders. Returns nothing while another process holds it. Error: kData when
  /// it cannot be created.
  [[nodiscard]] static Result<std::optional<FileLock>> try_lock(const std::filesystem::path& path);
  /// Locks `path`, and blocks while another process holds it. For short work.
  [[nodiscard]] static Result<FileLock> wait_for(const std::filesystem::path& path);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  [[nodiscard]] static Result<FileLock> open_file(const std::filesystem::path& path);
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
};

}  // namespace millrace::hub
