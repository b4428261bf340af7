#include "cache/store/folder_sync.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace millrace::cache {

FolderSync::FolderSync(std::unique_ptr<StoreFolder> folder, const StoreIdentity& identity,
                       const FileStoreOptions& options, const RecordFormat& format, StoreCounters& counters)
    : identity_(identity),
      store_path_(options.path),
      path_(folder->path()),
      format_(format),
      counters_(counters),
      folder_(std::move(folder)),
      index_(options.max_bytes) {}

std::shared_ptr<StoreFolder> FolderSync::folder() const {
  const std::lock_guard lock(folder_mutex_);
  return folder_;
}

void FolderSync::log_failure(const StoreFolder& folder, const char* step, const std::string& name, int64_t error) {
  ++counters_.errors;
  if (error == -ENOENT) {
    if (folder.is_gone()) return;  // that has a line of its own
    folder_damaged_ = true;
  }
  log_.warn(fmt::format("{} {}", step, error), "page store {}: {} {}: {}", path_, step, name,
            std::strerror(static_cast<int>(-error)));
}

bool FolderSync::append_change(const PageKey& key, PageChange::Kind kind, int64_t at_ns) {
  const auto folder = this->folder();
  const int error = folder->journal().append({key, at_ns, format_.record_bytes(), kind});
  if (error != 0) log_failure(*folder, "telling others in", folder->journal().name(), -int64_t{error});
  return error == 0;
}

void FolderSync::poll_journal() {
  // Held until all is known here: who comes meanwhile has to know it too.
  const std::lock_guard lock(journal_mutex_);
  const ChangeJournal::NewChanges learned = folder()->journal().poll();
  if (learned.missed) missed_changes_ = true;
  for (const PageChange& change : learned.changes) {
    if (change.bytes != format_.record_bytes()) continue;
    switch (change.kind) {
      case PageChange::Kind::kWriting: index_.add_pending({change.key, change.bytes, change.at_ns}); break;
      case PageChange::Kind::kWritten: index_.add({change.key, change.bytes, change.at_ns}); break;
      case PageChange::Kind::kRemoved: index_.forget(change.key, change.at_ns); break;
    }
  }
}

void FolderSync::write_access_times() {
  const auto folder = this->folder();
  for (const StoredPage& page : index_.take_touched()) {
    const std::string name = StoreFolder::page_name(page.key);
    const timespec times[2] = {{0, UTIME_OMIT}, {page.used_ns / 1'000'000'000, page.used_ns % 1'000'000'000}};
    if (utimensat(folder->descriptor(), name.c_str(), times, AT_SYMLINK_NOFOLLOW) != 0 && errno != ENOENT) {
      log_failure(*folder, "dating", name, -int64_t{errno});
    }
  }
}

void FolderSync::rescan() {
  // First, since what is under way cannot be found.
  poll_journal();
  missed_changes_ = false;
  const auto folder = this->folder();
  const int64_t begin_ns = index_.now_ns();
  folder->touch();
  folder->remove_leftovers();
  index_.merge(folder->scan(), begin_ns);
}

void FolderSync::repair() {
  const bool is_gone = folder()->is_gone();
  if (!is_gone && !folder_damaged_.exchange(false)) return;
  auto made = StoreFolder::open(store_path_, identity_);
  if (!made) {
    ++counters_.errors;
    folder_damaged_ = true;
    log_.warn("gone",
              "page store {}: the directory was removed; every get misses and every put is refused until it can "
              "be created again: {}",
              path_, made.error().message);
    return;
  }
  {
    const std::lock_guard lock(folder_mutex_);
    folder_ = std::move(*made);
  }
  rescan();
  log_.warn("made", "page store {}: {}; it was created again and holds {} pages", path_,
            is_gone ? "the directory was removed" : "a part of the directory was removed", index_.page_count());
}

}  // namespace millrace::cache
