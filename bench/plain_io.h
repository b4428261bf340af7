#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>

#include "base/check.h"

/// What benchmarks of storage compare with: plain calls for whole files, and memory such as they want.
namespace millrace::bench {

/// Gives the file's pages of the page cache back; they must be on the disk already.
inline void forget_file(const std::filesystem::path& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  CHECK(file >= 0, "{}", path.string());
  CHECK(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0);
  close(file);
}

inline void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  CHECK(file >= 0, "{}: {}", path.string(), std::strerror(errno));
  while (!bytes.empty()) {
    const ssize_t count = write(file, bytes.data(), bytes.size());
    CHECK(count > 0, "{}: {}", path.string(), std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  CHECK(fdatasync(file) == 0);
  close(file);
}

inline void read_file(const std::filesystem::path& path, std::span<std::byte> into) {
  constexpr size_t kPiece = size_t{1} << 20;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  CHECK(file >= 0, "{}", path.string());
  while (!into.empty()) {
    const ssize_t count = read(file, into.data(), std::min(kPiece, into.size()));
    CHECK(count > 0);
    into = into.subspan(static_cast<size_t>(count));
  }
  close(file);
}

/// Memory aligned as pools of pages are: the kernel copies several times slower to or from some other addresses.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED, "{} bytes", bytes);
    data_ = static_cast<std::byte*>(mapped);
    std::memset(data_, 1, bytes);
  }
  ~Buffer() { munmap(data_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  [[nodiscard]] std::span<std::byte> all() const { return {data_, bytes_}; }
  [[nodiscard]] std::span<std::byte> part(size_t index, size_t bytes) const {
    return all().subspan(index * bytes, bytes);
  }

 private:
  size_t bytes_;
  std::byte* data_ = nullptr;
};

}  // namespace millrace::bench
