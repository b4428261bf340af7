#include "cache/folder_news.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "cache/folder_scan.h"

namespace millrace::cache {
namespace {

constexpr std::array<char, 8> kMagic = {'m', 'r', 'n', 'e', 'w', 's', '\r', '\n'};

/// What a file begins with; the news follow, each in the place of the one kKept before it.
struct NewsHeader {
  std::array<char, 8> magic{};
  uint64_t told = 0;
};
static_assert(sizeof(NewsHeader) == 16 && sizeof(PageNews) == 56);

off_t place_of(uint64_t number) {
  return static_cast<off_t>(sizeof(NewsHeader) + number % FolderNews::kKept * sizeof(PageNews));
}

template <class T>
bool write_at(int file, const T& value, off_t place) {
  const ssize_t written = pwrite(file, &value, sizeof value, place);
  if (written == sizeof value) return true;
  if (written >= 0) errno = ENOSPC;
  return false;
}

/// How many news a file has; 0 while it is being made.
uint64_t count_in(int file) {
  NewsHeader header;
  if (pread(file, &header, sizeof header, 0) != sizeof header || header.magic != kMagic) return 0;
  return header.told;
}

}  // namespace

FolderNews::FolderNews(int folder, std::string_view writer)
    : folder_(folder), own_name_(fmt::format("tmp/{}{}", writer, kNewsSuffix)), error_(make_file()) {}

FolderNews::~FolderNews() {
  for (const auto& [name, other] : others_) close(other.file);
}

int FolderNews::make_file() {
  const int file = openat(folder_, own_name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) return errno;
  // So that a disk which fills up later still takes news of what is removed; where it cannot be done, it may not.
  (void)posix_fallocate(file, 0, place_of(kKept - 1) + static_cast<off_t>(sizeof(PageNews)));
  const int error = write_at(file, NewsHeader{kMagic, 0}, 0) ? 0 : errno;
  close(file);
  return error;
}

int FolderNews::tell(const PageNews& news) {
  const std::lock_guard lock(own_mutex_);
  // Opened anew each time, so that the file system can be made read-only meanwhile.
  const int file = openat(folder_, own_name_.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return errno;
  const bool ok = write_at(file, news, place_of(told_)) && write_at(file, NewsHeader{kMagic, told_ + 1}, 0);
  const int error = ok ? 0 : errno;
  told_ += ok ? 1 : 0;
  close(file);
  return error;
}

FolderNews::Learned FolderNews::learn() {
  Learned learned;
  std::set<std::string> present;
  for_each_name(folder_, "tmp", [&](int tmp, const char* file_name) {
    const std::string name(file_name);
    if (!name.ends_with(kNewsSuffix) || own_name_.ends_with(name)) return;
    present.insert(name);
    if (others_.contains(name)) return;
    const int file = openat(tmp, file_name, O_RDONLY | O_CLOEXEC);
    if (file >= 0) others_.emplace(name, Other{file});
  });
  for (auto other = others_.begin(); other != others_.end();) {
    read_on(other->second, learned);
    const auto next = std::next(other);
    if (!present.contains(other->first)) {
      close(other->second.file);
      others_.erase(other);
    }
    other = next;
  }
  return learned;
}

void FolderNews::read_on(Other& other, Learned& learned) {
  const uint64_t told = count_in(other.file);
  if (told <= other.read) return;
  // The next one may be on its way into the place of the oldest.
  const uint64_t first = std::max(other.read, told - std::min(told, kKept - 1));
  bool whole = true;
  learned.missed = learned.missed || first > other.read;
  other.read = told;
  std::vector<PageNews> news(told - first);
  for (uint64_t at = first; whole && at < told;) {
    const uint64_t count = std::min(told - at, kKept - at % kKept);
    const auto bytes = static_cast<ssize_t>(count * sizeof(PageNews));
    whole = pread(other.file, &news[at - first], static_cast<size_t>(bytes), place_of(at)) == bytes;
    at += count;
  }
  whole = whole && count_in(other.file) - first < kKept;
  if (whole) learned.news.insert(learned.news.end(), news.begin(), news.end());
  learned.missed = learned.missed || !whole;
}

}  // namespace millrace::cache
