#include <cerrno>
#include <cstring>
#include <utility>

#include "cache/store/file_pages.h"

namespace millrace::cache {
namespace {

int64_t mtime_ns(const struct statx& status) {
  return status.stx_mtime.tv_sec * 1'000'000'000 + int64_t{status.stx_mtime.tv_nsec};
}

}  // namespace

void FilePages::remove_abandoned() {
  // Whether the bound holds and what to do if not belong together: two at once would remove too much.
  const std::lock_guard lock(abandoned_mutex_);
  while (!index_.fits(abandoned_.bytes())) {
    const auto removal = abandoned_.remove_oldest();
    if (!removal) break;
    ++(removal->error == 0 ? counters_.evicted : counters_.errors);
    if (removal->error != 0) {
      log_.warn("abandoned", "page store {}: evicting {}: {}", store_path_, removal->name,
                std::strerror(removal->error));
    }
  }
}

IoTask<bool> FilePages::make_room(FileIo& io) {
  remove_abandoned();
  const auto folder = this->folder();
  while (!index_.fits()) {
    const auto victim = index_.take_victim();
    if (!victim && !index_.has_victims()) co_return false;
    if (!victim) continue;
    const std::string name = StoreFolder::page_name(victim->key);
    struct statx status{};
    int64_t result = co_await io.stat(folder->descriptor(), name.c_str(), status);
    if (result == 0 && mtime_ns(status) > victim->used_ns) {
      // Another server has used it since.
      index_.add({victim->key, victim->bytes, mtime_ns(status)});
      continue;
    }
    // The time is that before the removal: who writes the page anew meanwhile has the later news.
    const int64_t at_ns = index_.now_ns();
    if (result == 0) result = co_await io.unlink(folder->descriptor(), name.c_str());
    if (result == 0) {
      ++counters_.evicted;
      (void)append_change(victim->key, PageChange::Kind::kRemoved, at_ns);
    }
    if (result < 0 && result != -ENOENT) {
      index_.add(*victim);
      log_failure(*folder, "evicting", name, result);
      co_return false;
    }
  }
  co_return true;
}

bool FilePages::append_change(const PageKey& key, PageChange::Kind kind, int64_t at_ns) {
  const auto folder = this->folder();
  const int error = folder->journal().append({key, at_ns, format_.record_bytes(), kind});
  if (error != 0) log_failure(*folder, "telling others in", folder->journal().name(), -int64_t{error});
  return error == 0;
}

void FilePages::poll_journal() {
  // Held until all is known here: who comes meanwhile has to know it too.
  const std::lock_guard lock(journal_mutex_);
  const ChangeJournal::NewChanges learned = folder()->journal().poll();
  if (learned.missed) missed_changes_ = true;
  for (const PageChange& news : learned.changes) {
    if (news.bytes != format_.record_bytes()) continue;
    switch (news.kind) {
      case PageChange::Kind::kWriting: index_.add_pending({news.key, news.bytes, news.at_ns}); break;
      case PageChange::Kind::kWritten: index_.add({news.key, news.bytes, news.at_ns}); break;
      case PageChange::Kind::kRemoved: index_.forget(news.key, news.at_ns); break;
    }
  }
}

void FilePages::write_access_times() {
  const auto folder = this->folder();
  for (const StoredPage& page : index_.take_touched()) {
    const std::string name = StoreFolder::page_name(page.key);
    const timespec times[2] = {{0, UTIME_OMIT}, {page.used_ns / 1'000'000'000, page.used_ns % 1'000'000'000}};
    if (utimensat(folder->descriptor(), name.c_str(), times, AT_SYMLINK_NOFOLLOW) != 0 && errno != ENOENT) {
      log_failure(*folder, "dating", name, -int64_t{errno});
    }
  }
}

void FilePages::rescan() {
  // First, since what is under way cannot be found.
  poll_journal();
  missed_changes_ = false;
  const auto folder = this->folder();
  const int64_t begin_ns = index_.now_ns();
  folder->touch();
  folder->remove_leftovers();
  index_.merge(folder->scan(), begin_ns);
}

void FilePages::repair_folder() {
  const bool is_gone = folder()->is_gone();
  if (!is_gone && !folder_damaged_.exchange(false)) return;
  auto made = StoreFolder::open(store_path_, identity_);
  if (!made) {
    ++counters_.errors;
    folder_damaged_ = true;
    log_.warn("gone",
              "page store {}: the directory was removed; every get misses and every put is refused until it can "
              "be made anew: {}",
              path_, made.error().message);
    return;
  }
  {
    const std::lock_guard lock(folder_mutex_);
    folder_ = std::move(*made);
  }
  rescan();
  log_.warn("made", "page store {}: {}; it was made anew and holds {} pages", path_,
            is_gone ? "the directory was removed" : "a part of the directory was removed", index_.page_count());
}

}  // namespace millrace::cache
