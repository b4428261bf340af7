#include "cache/store/change_journal.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "cache/store/folder_scan.h"

namespace millrace::cache {
namespace {

constexpr std::array<char, 8> kMagic = {'m', 'r', 'n', 'e', 'w', 's', '\r', '\n'};

/// The beginning of a journal file. The changes follow, each in the place of the one kCapacity before it.
struct JournalHeader {
  std::array<char, 8> magic{};
  uint64_t appended = 0;
};
static_assert(sizeof(JournalHeader) == 16 && sizeof(PageChange) == 56);

off_t place_of(uint64_t number) {
  return static_cast<off_t>(sizeof(JournalHeader) + number % ChangeJournal::kCapacity * sizeof(PageChange));
}

template <class T>
bool write_at(int file, const T& value, off_t place) {
  const ssize_t written = pwrite(file, &value, sizeof value, place);
  if (written == sizeof value) return true;
  if (written >= 0) errno = ENOSPC;
  return false;
}

/// Returns the number of changes in a file; 0 while it is being made.
uint64_t count_in(int file) {
  JournalHeader header;
  if (pread(file, &header, sizeof header, 0) != sizeof header || header.magic != kMagic) return 0;
  return header.appended;
}

}  // namespace

ChangeJournal::ChangeJournal(int folder, std::string_view writer)
    : folder_(folder), own_name_(fmt::format("tmp/{}{}", writer, kJournalSuffix)), error_(make_file()) {}

ChangeJournal::~ChangeJournal() {
  for (const auto& [name, other] : peers_) close(other.file);
}

int ChangeJournal::make_file() {
  const int file = openat(folder_, own_name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) return errno;
  // Reserves room, so that a disk that fills up later still takes changes for removals. A failure is no harm.
  (void)posix_fallocate(file, 0, place_of(kCapacity - 1) + static_cast<off_t>(sizeof(PageChange)));
  const int error = write_at(file, JournalHeader{kMagic, 0}, 0) ? 0 : errno;
  close(file);
  return error;
}

int ChangeJournal::append(const PageChange& change) {
  const std::lock_guard lock(own_mutex_);
  // Opened anew each time, so that the file system can be made read-only meanwhile.
  const int file = openat(folder_, own_name_.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return errno;
  const bool ok =
      write_at(file, change, place_of(appended_)) && write_at(file, JournalHeader{kMagic, appended_ + 1}, 0);
  const int error = ok ? 0 : errno;
  appended_ += ok ? 1 : 0;
  close(file);
  return error;
}

ChangeJournal::NewChanges ChangeJournal::poll() {
  NewChanges result;
  std::set<std::string> present;
  for_each_name(folder_, "tmp", [&](int tmp, const char* file_name) {
    const std::string name(file_name);
    if (!name.ends_with(kJournalSuffix) || own_name_.ends_with(name)) return;
    present.insert(name);
    if (peers_.contains(name)) return;
    const int file = openat(tmp, file_name, O_RDONLY | O_CLOEXEC);
    if (file >= 0) peers_.emplace(name, Peer{file});
  });
  for (auto other = peers_.begin(); other != peers_.end();) {
    read_new(other->second, result);
    const auto next = std::next(other);
    if (!present.contains(other->first)) {
      close(other->second.file);
      peers_.erase(other);
    }
    other = next;
  }
  return result;
}

void ChangeJournal::read_new(Peer& other, NewChanges& result) {
  const uint64_t appended = count_in(other.file);
  if (appended <= other.read) return;
  // The next one may be on its way into the place of the oldest.
  const uint64_t first = std::max(other.read, appended - std::min(appended, kCapacity - 1));
  bool whole = true;
  result.missed = result.missed || first > other.read;
  other.read = appended;
  std::vector<PageChange> changes(appended - first);
  for (uint64_t at = first; whole && at < appended;) {
    const uint64_t count = std::min(appended - at, kCapacity - at % kCapacity);
    const auto bytes = static_cast<ssize_t>(count * sizeof(PageChange));
    whole = pread(other.file, &changes[at - first], static_cast<size_t>(bytes), place_of(at)) == bytes;
    at += count;
  }
  whole = whole && count_in(other.file) - first < kCapacity;
  if (whole) result.changes.insert(result.changes.end(), changes.begin(), changes.end());
  result.missed = result.missed || !whole;
}

}  // namespace millrace::cache
