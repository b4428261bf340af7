#include "cache/store/page_evictor.h"

#include <cerrno>
#include <cstring>
#include <unordered_set>

namespace millrace::cache {
namespace {

/// Victims that one put tries in vain before it is refused; the next put goes on after them.
constexpr size_t kMaxFailedVictims = 64;

int64_t mtime_ns(const struct statx& status) {
  return status.stx_mtime.tv_sec * 1'000'000'000 + int64_t{status.stx_mtime.tv_nsec};
}

}  // namespace

PageEvictor::PageEvictor(FolderSync& folder, const FileStoreOptions& options, const RecordFormat& format,
                         StoreCounters& counters)
    : folder_(folder),
      store_path_(options.path),
      counters_(counters),
      abandoned_(options.path, format.identity(), options.abandoned_after) {}

void PageEvictor::remove_abandoned() {
  // The check of the bound and the eviction belong together: two at once would remove too much.
  const std::lock_guard lock(abandoned_mutex_);
  while (!folder_.index().fits(abandoned_.bytes())) {
    const auto removal = abandoned_.remove_oldest();
    if (!removal) break;
    ++(removal->error == 0 ? counters_.evicted : counters_.errors);
    if (removal->error != 0) {
      folder_.log().warn("abandoned", "page store {}: evicting {}: {}", store_path_, removal->name,
                         std::strerror(removal->error));
    }
  }
}

IoTask<bool> PageEvictor::make_room(FileIo& io) {
  remove_abandoned();
  PageIndex& index = folder_.index();
  std::unordered_set<PageKey> failed;
  while (!index.fits()) {
    const auto victim = index.take_victim();
    if (!victim && !index.has_victims()) co_return false;
    if (!victim) continue;
    if (failed.contains(victim->key)) {  // only those that failed are left
      index.set_aside(*victim);
      co_return false;
    }
    const Removal removal = co_await remove(io, *victim);
    if (removal == Removal::kReadOnly) co_return false;
    if (removal != Removal::kFailed) continue;
    failed.insert(victim->key);
    if (failed.size() == kMaxFailedVictims) co_return false;
  }
  co_return true;
}

IoTask<PageEvictor::Removal> PageEvictor::remove(FileIo& io, const StoredPage& victim) {
  PageIndex& index = folder_.index();
  const auto folder = folder_.folder();
  const std::string name = StoreFolder::page_name(victim.key);
  struct statx status{};
  int64_t result = co_await io.stat(folder->descriptor(), name.c_str(), status);
  if (result == 0 && mtime_ns(status) > victim.used_ns) {
    // Another server has used it since.
    index.add({victim.key, victim.bytes, mtime_ns(status)});
    co_return Removal::kUsedMeanwhile;
  }
  // The time is that before the removal: who writes the page anew meanwhile has the later news.
  const int64_t at_ns = index.now_ns();
  if (result == 0) result = co_await io.unlink(folder->descriptor(), name.c_str());
  if (result == 0) {
    ++counters_.evicted;
    (void)folder_.append_change(victim.key, PageChange::Kind::kRemoved, at_ns);
  }
  if (result == 0 || result == -ENOENT) co_return Removal::kDone;
  index.set_aside(victim);
  folder_.log_failure(*folder, "evicting", name, result);
  co_return result == -EROFS ? Removal::kReadOnly : Removal::kFailed;
}

}  // namespace millrace::cache
