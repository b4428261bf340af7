#pragma once

#include <mutex>
#include <string>

#include "cache/store/abandoned_folders.h"
#include "cache/store/file_io.h"
#include "cache/store/folder_sync.h"
#include "cache/store/io_task.h"

namespace millrace::cache {

/// Keeps a file store within its bound by removing pages: those of abandoned folders first, then its own, least
/// recently used first. A page that cannot be removed is passed over, and tried again when no other is left. Owned by
/// the store, outlives its workers, used from any of them; the folder and the counters are the store's.
class PageEvictor {
 public:
  PageEvictor(FolderSync& folder, const FileStoreOptions& options, const RecordFormat& format, StoreCounters& counters);

  /// Removes pages until the bound holds. False when it cannot: what is left is being written, or cannot be removed.
  [[nodiscard]] IoTask<bool> make_room(FileIo& io);
  /// Finds the folders of other identities that no server uses any more. Blocks.
  void scan_abandoned() { abandoned_.scan(); }

 private:
  enum class Removal { kDone, kUsedMeanwhile, kFailed, kReadOnly };
  void remove_abandoned();
  [[nodiscard]] IoTask<Removal> remove(FileIo& io, const StoredPage& victim);

  FolderSync& folder_;
  const std::string store_path_;
  StoreCounters& counters_;
  std::mutex abandoned_mutex_;
  AbandonedFolders abandoned_;
};

}  // namespace millrace::cache
