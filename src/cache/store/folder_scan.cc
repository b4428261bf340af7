#include "cache/store/folder_scan.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

namespace millrace::cache {
namespace {

std::optional<PageKey> parse_key(std::string_view name) {
  PageKey key;
  if (name.size() != 2 * key.bytes.size()) return std::nullopt;
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
  for (size_t i = 0; i < key.bytes.size(); ++i) {
    const int high = digit(name[2 * i]);
    const int low = digit(name[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    key.bytes[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return key;
}

}  // namespace

void for_each_name(int parent, const char* name, const std::function<void(int folder, const char* name)>& visit) {
  const int opened = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0) return;
  DIR* folder = fdopendir(opened);
  if (folder == nullptr) {
    close(opened);
    return;
  }
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] != '.') visit(dirfd(folder), entry->d_name);
  }
  closedir(folder);
}

std::vector<StoredPage> pages_in(int parent) {
  std::vector<StoredPage> pages;
  for (int i = 0; i < kFanOut; ++i) {
    for_each_name(parent, fmt::format("{:02x}", i).c_str(), [&](int folder, const char* name) {
      const auto key = parse_key(name);
      struct stat status{};
      if (!key || fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode)) return;
      const int64_t used_ns = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
      pages.push_back({*key, static_cast<uint64_t>(status.st_size), used_ns});
    });
  }
  return pages;
}

bool is_dead_writer(int folder, const std::string& writer) {
  const std::string name = fmt::format("tmp/{}{}", writer, kLockSuffix);
  const int lock = openat(folder, name.c_str(), O_RDWR | O_CLOEXEC);
  if (lock < 0) return errno == ENOENT;
  const bool is_dead = flock(lock, LOCK_EX | LOCK_NB) == 0;
  if (is_dead) unlinkat(folder, name.c_str(), 0);
  close(lock);
  return is_dead;
}

bool has_living_writer(int folder) {
  bool is_alive = false;
  for_each_name(folder, "tmp", [&](int, const char* name) {
    const std::string_view file(name);
    if (is_alive || !file.ends_with(kLockSuffix)) return;
    is_alive = !is_dead_writer(folder, std::string(file.substr(0, file.size() - kLockSuffix.size())));
  });
  return is_alive;
}

}  // namespace millrace::cache
