#include "cache/store/abandoned_folders.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "cache/store/folder_scan.h"
#include "cache/store/store_folder.h"

namespace millrace::cache {
namespace {

bool names_identity(std::string_view name) {
  return name.size() == 2 * IdentityHash{}.bytes.size() &&
         name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

/// An identity's folder, open as long as the object lives.
class AbandonedFolders::Folder {
 public:
  Folder(const std::string& path, const std::string& name)
      : folder_(open((path + "/" + name).c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) {}
  ~Folder() {
    if (folder_ >= 0) close(folder_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  [[nodiscard]] int descriptor() const { return folder_; }
  [[nodiscard]] bool is_abandoned(std::chrono::seconds after) const {
    struct stat status{};
    if (folder_ < 0) return false;
    // Without tmp/ somebody has been interrupted while removing it.
    if (fstatat(folder_, "tmp", &status, AT_SYMLINK_NOFOLLOW) != 0 && fstat(folder_, &status) != 0) return false;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return now - std::chrono::seconds(status.st_mtim.tv_sec) >= after && !has_living_writer(folder_);
  }

 private:
  const int folder_;
};

AbandonedFolders::AbandonedFolders(std::string path, const IdentityHash& own, std::chrono::seconds after)
    : path_(std::move(path)), own_(own.hex()), after_(after) {}

void AbandonedFolders::scan() {
  std::multimap<int64_t, Page> found;
  std::map<std::string, size_t> counts;
  uint64_t bytes = 0;
  for_each_name(AT_FDCWD, path_.c_str(), [&](int, const char* name) {
    if (!names_identity(name) || name == own_) return;
    const Folder folder(path_, name);
    if (!folder.is_abandoned(after_)) return;
    const std::vector<StoredPage> pages = pages_in(folder.descriptor());
    if (pages.empty()) remove_folder(name);
    counts[name] = pages.size();
    for (const StoredPage& page : pages) {
      found.emplace(page.used_ns, Page{name, page.key, page.bytes});
      bytes += page.bytes;
    }
  });
  const std::lock_guard lock(mutex_);
  pages_ = std::move(found);
  page_counts_ = std::move(counts);
  bytes_ = bytes;
}

uint64_t AbandonedFolders::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

std::optional<AbandonedFolders::Removal> AbandonedFolders::remove_oldest() {
  const std::lock_guard lock(mutex_);
  while (!pages_.empty()) {
    const Page page = std::move(pages_.begin()->second);
    pages_.erase(pages_.begin());
    bytes_ -= page.bytes;
    const Folder folder(path_, page.folder);
    if (!folder.is_abandoned(after_)) {
      forget_folder(page.folder);
      continue;
    }
    const std::string name = StoreFolder::page_name(page.key);
    const bool is_gone = unlinkat(folder.descriptor(), name.c_str(), 0) == 0 || errno == ENOENT;
    const int error = is_gone ? 0 : errno;
    if (--page_counts_[page.folder] == 0) remove_folder(page.folder);
    return Removal{page.folder + "/" + name, error};
  }
  return std::nullopt;
}

void AbandonedFolders::forget_folder(const std::string& name) {
  std::erase_if(pages_, [&](const auto& entry) {
    if (entry.second.folder != name) return false;
    bytes_ -= entry.second.bytes;
    return true;
  });
}

// What is not empty, because somebody has come back or has put something else there, stays.
void AbandonedFolders::remove_folder(const std::string& name) const {
  const Folder folder(path_, name);
  if (folder.descriptor() < 0 || has_living_writer(folder.descriptor())) return;
  for_each_name(folder.descriptor(), "tmp", [](int tmp, const char* file) {
    if (!std::string_view(file).ends_with(kLockSuffix)) unlinkat(tmp, file, 0);
  });
  if (unlinkat(folder.descriptor(), "tmp", AT_REMOVEDIR) != 0 && errno != ENOENT) return;
  for (int i = 0; i < kFanOut; ++i) unlinkat(folder.descriptor(), fmt::format("{:02x}", i).c_str(), AT_REMOVEDIR);
  unlinkat(folder.descriptor(), "identity.txt", 0);
  rmdir((path_ + "/" + name).c_str());
}

}  // namespace millrace::cache
