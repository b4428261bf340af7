#pragma once

#include <memory>
#include <span>

#include "cache/store/file_io.h"
#include "cache/store/folder_sync.h"
#include "cache/store/io_task.h"
#include "cache/store/page_evictor.h"
#include "cache/store/page_record.h"

namespace millrace::cache {

/// get, put and exists of pages in a folder, as coroutines over FileIo. Owned by the store, outlives its workers, used
/// from any of them; the folder, the evictor and the counters are the store's. No failure of the file system throws: it
/// is logged, counted, and answered with false.
class FilePages {
 public:
  FilePages(FolderSync& folder, PageEvictor& evictor, const RecordFormat& format, StoreCounters& counters);

  /// Reads a page into `into` [page_bytes].
  [[nodiscard]] IoTask<bool> get(FileIo& io, const PageKey& key, std::span<std::byte> into);
  /// Writes `page` [page_bytes] unless it is there.
  [[nodiscard]] IoTask<bool> put(FileIo& io, const PageKey& key, std::span<const std::byte> page);
  /// Returns whether a page exists with the right size.
  [[nodiscard]] IoTask<bool> exists(FileIo& io, const PageKey& key);

 private:
  [[nodiscard]] IoTask<bool> write_file(FileIo& io, const PageKey& key, std::span<const std::byte> page);
  [[nodiscard]] IoTask<bool> discard(FileIo& io, const PageKey& key, RecordStatus verdict, int64_t found_bytes);

  FolderSync& folder_;
  PageEvictor& evictor_;
  const RecordFormat& format_;
  StoreCounters& counters_;
  PageIndex& index_;
};

}  // namespace millrace::cache
