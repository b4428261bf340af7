#include "hub/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace millrace::hub {

Result<FileLock> FileLock::open_file(const std::filesystem::path& path) {
  std::error_code failure;
  std::filesystem::create_directories(path.parent_path(), failure);
  if (failure)
    return make_error(ErrorCode::kData, "{}: cannot be created: {}", path.parent_path().string(), failure.message());
  constexpr mode_t kMode = 0644;
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode);
  if (descriptor < 0)
    return make_error(ErrorCode::kData, "{}: cannot be created: {}", path.string(), std::strerror(errno));
  return FileLock(descriptor);
}

Result<FileLock> FileLock::wait_for(const std::filesystem::path& path) {
  auto lock = open_file(path);
  if (lock.has_error()) return lock.error();
  while (flock(lock->descriptor_, LOCK_EX) != 0) {
    if (errno != EINTR)
      return make_error(ErrorCode::kData, "{}: cannot be locked: {}", path.string(), std::strerror(errno));
  }
  return lock;
}

Result<std::optional<FileLock>> FileLock::try_lock(const std::filesystem::path& path) {
  auto lock = open_file(path);
  if (lock.has_error()) return lock.error();
  if (flock(lock->descriptor_, LOCK_EX | LOCK_NB) == 0) return std::optional<FileLock>(std::move(*lock));
  if (errno == EWOULDBLOCK) return std::optional<FileLock>();
  return make_error(ErrorCode::kData, "{}: cannot be locked: {}", path.string(), std::strerror(errno));
}

FileLock::FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace millrace::hub
