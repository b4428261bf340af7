#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "cache/store/abandoned_folders.h"
#include "cache/store/file_io.h"
#include "cache/store/io_task.h"
#include "cache/store/page_index.h"
#include "cache/store/store_folder.h"
#include "cache/store/store_log.h"

namespace millrace::cache {

/// What can be done with the pages of a folder, as coroutines over FileIo. Used from any worker; owned by the store and
/// outlives its workers. No failure of the file system throws: it is logged, counted, and answered with false.
class FilePages {
 public:
  FilePages(std::unique_ptr<StoreFolder> folder, const StoreIdentity& identity, const FileStoreOptions& options,
            const RecordFormat& form, StoreCounters& counters);

  /// `into` [page_bytes].
  [[nodiscard]] IoTask<bool> get(FileIo& io, const PageKey& key, std::span<std::byte> into);
  /// `page` [page_bytes].
  [[nodiscard]] IoTask<bool> put(FileIo& io, const PageKey& key, std::span<const std::byte> page);
  [[nodiscard]] IoTask<bool> exists(FileIo& io, const PageKey& key);

  /// Removes the pages used least recently until the bound holds. False when it cannot.
  [[nodiscard]] IoTask<bool> make_room(FileIo& io);
  /// Learns which pages other servers have put and removed since the last call. Blocks, but for no other server.
  void poll_journal();
  /// Whether some of that was lost since the last rescan().
  [[nodiscard]] bool has_missed_changes() const { return missed_changes_; }
  /// Writes the uses since the last call into the files' mtimes, where other servers and later runs find them. Blocks.
  void write_access_times();
  /// Learns from the folder what others have done there. Blocks.
  void rescan();
  /// Learns which folders beside this one nobody uses any more. Blocks.
  void scan_abandoned() { abandoned_.scan(); }
  /// Makes the folder anew when it was removed, or a part of it. Blocks.
  void repair_folder();
  [[nodiscard]] PageIndex& index() { return index_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  [[nodiscard]] IoTask<bool> write_record(FileIo& io, const PageKey& key, std::span<const std::byte> page);
  [[nodiscard]] IoTask<int64_t> write_all(FileIo& io, int file, const PageHeader& header,
                                          std::span<const std::byte> page);
  /// How many bytes the record in `file` has, of which as many were read as fit; or -errno.
  [[nodiscard]] IoTask<int64_t> read_all(FileIo& io, int file, PageHeader& header, std::span<std::byte> into);
  [[nodiscard]] IoTask<bool> discard(FileIo& io, const PageKey& key, RecordStatus verdict, int64_t found_bytes);
  /// Pages of abandoned folders go before the own.
  void remove_abandoned();
  /// False when the other servers could not be told.
  bool append_change(const PageKey& key, PageChange::Kind kind, int64_t at_ns);
  void log_failure(const StoreFolder& folder, const char* step, const std::string& name, int64_t error);
  /// Stays usable while the caller holds it, whatever becomes of the store's own.
  [[nodiscard]] std::shared_ptr<StoreFolder> folder() const;

  const StoreIdentity identity_;
  const std::string store_path_;
  const std::string path_;  // of this identity
  mutable std::mutex folder_mutex_;
  std::shared_ptr<StoreFolder> folder_;
  std::atomic<bool> folder_damaged_{false};  // a folder within was not there
  std::mutex journal_mutex_;
  std::atomic<bool> missed_changes_{false};
  std::mutex abandoned_mutex_;
  AbandonedFolders abandoned_;
  const RecordFormat& format_;
  StoreCounters& counters_;
  PageIndex index_;
  StoreLog log_;
};

}  // namespace millrace::cache
