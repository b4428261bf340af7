#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "cache/store/file_io.h"
#include "cache/store/page_index.h"
#include "cache/store/store_folder.h"
#include "cache/store/store_log.h"

namespace millrace::cache {

/// Keeps a file store's index in step with its folder, which other servers use too. It reads and writes journals,
/// rescans, records the times of uses, and notices a removed folder. Owned by the store, outlives its workers; used
/// from any of them and from the maintenance thread. No failure of the file system throws: it is logged, counted, and
/// answered with false. Everything blocks for a few system calls; rescan() and repair() for one stat per page.
class FolderSync {
 public:
  FolderSync(std::unique_ptr<StoreFolder> folder, const StoreIdentity& identity, const FileStoreOptions& options,
             const RecordFormat& format, StoreCounters& counters);

  /// Returns the folder, which stays usable while the caller holds it, even if repair() has replaced it.
  [[nodiscard]] std::shared_ptr<StoreFolder> folder() const;
  [[nodiscard]] PageIndex& index() { return index_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] StoreLog& log() { return log_; }

  /// Sends a change to the other servers. Returns false when that fails.
  bool append_change(const PageKey& key, PageChange::Kind kind, int64_t at_ns);
  /// Reads from the journals which pages other servers have put and removed since the last call.
  void poll_journal();
  /// Returns whether a change by others was lost since the last rescan().
  [[nodiscard]] bool has_missed_changes() const { return missed_changes_; }
  /// Writes the uses since the last call into the files' mtimes, where other servers and later runs find them.
  void write_access_times();
  /// Updates the index with what others have done in the folder.
  void rescan();
  /// Makes the folder anew when it was removed, or a part of it.
  void repair();
  /// Counts and logs that a step failed with -errno `error`.
  void log_failure(const StoreFolder& folder, const char* step, const std::string& name, int64_t error);

 private:
  const StoreIdentity identity_;
  const std::string store_path_;
  const std::string path_;  // of this identity
  const RecordFormat& format_;
  StoreCounters& counters_;
  mutable std::mutex folder_mutex_;
  std::shared_ptr<StoreFolder> folder_;
  std::atomic<bool> folder_damaged_{false};  // a folder within was not there
  std::mutex journal_mutex_;
  std::atomic<bool> missed_changes_{false};
  PageIndex index_;
  StoreLog log_;
};

}  // namespace millrace::cache
