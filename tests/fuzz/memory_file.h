#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "base/check.h"

namespace millrace::fuzz {

/// A file in memory, with a path that can be opened.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    CHECK(fd_ >= 0, "memfd_create failed");
    CHECK(write(fd_, content.data(), content.size()) == static_cast<ssize_t>(content.size()), "write failed");
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  [[nodiscard]] std::string path() const { return fmt::format("/proc/self/fd/{}", fd_); }

 private:
  int fd_;
};

}  // namespace millrace::fuzz
