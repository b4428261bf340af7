#include "cache/store/file_pages.h"

#include <cerrno>

#include "cache/store/record_io.h"

namespace millrace::cache {

FilePages::FilePages(FolderSync& folder, PageEvictor& evictor, const RecordFormat& format, StoreCounters& counters)
    : folder_(folder), evictor_(evictor), format_(format), counters_(counters), index_(folder.index()) {}

IoTask<bool> FilePages::exists(FileIo& io, const PageKey& key) {
  const std::string name = StoreFolder::page_name(key);
  const auto folder = folder_.folder();
  struct statx status{};
  const int64_t result = co_await io.stat(folder->descriptor(), name.c_str(), status);
  if (result < 0 && result != -ENOENT) folder_.log_failure(*folder, "looking for", name, result);
  co_return result == 0 && S_ISREG(status.stx_mode) && status.stx_size == format_.record_bytes();
}

IoTask<bool> FilePages::get(FileIo& io, const PageKey& key, std::span<std::byte> into) {
  const std::string name = StoreFolder::page_name(key);
  const auto folder = folder_.folder();
  const int64_t begin_ns = index_.now_ns();
  const int64_t opened = co_await io.open(folder->descriptor(), name.c_str(), O_RDONLY | O_NOFOLLOW);
  if (opened == -ENOENT) {
    index_.forget(key, begin_ns);  // a put may have ended meanwhile
    co_return false;
  }
  if (opened < 0) {
    folder_.log_failure(*folder, "opening", name, opened);
    co_return false;
  }
  const auto file = static_cast<int>(opened);
  const auto header = std::make_unique<PageHeader>();
  const int64_t found_bytes = co_await read_record(io, file, *header, into);
  co_await io.close(file);
  if (found_bytes < 0) {
    folder_.log_failure(*folder, "reading", name, found_bytes);
    co_return false;
  }
  const RecordStatus verdict = format_.check(*header, key, into, static_cast<uint64_t>(found_bytes));
  if (verdict == RecordStatus::kValid) {
    index_.touch(key, format_.record_bytes());
    co_return true;
  }
  co_await discard(io, key, verdict, found_bytes);
  co_return false;
}

IoTask<bool> FilePages::discard(FileIo& io, const PageKey& key, RecordStatus verdict, int64_t found_bytes) {
  const std::string name = StoreFolder::page_name(key);
  const bool foreign = verdict == RecordStatus::kForeign;
  ++(foreign ? counters_.foreign : counters_.corrupt);
  folder_.log().warn(foreign ? "foreign" : "corrupt",
                     "page store {}: page {} is {} ({} bytes found, {} wanted): deleting it", folder_.path(), name,
                     foreign ? "of another identity, key or version" : "corrupt", found_bytes, format_.record_bytes());
  index_.forget(key);
  const auto folder = folder_.folder();
  const int64_t at_ns = index_.now_ns();
  const int64_t result = co_await io.unlink(folder->descriptor(), name.c_str());
  if (result == 0) (void)folder_.append_change(key, PageChange::Kind::kRemoved, at_ns);
  if (result < 0 && result != -ENOENT) folder_.log_failure(*folder, "deleting", name, result);
  co_return result == 0;
}

IoTask<bool> FilePages::put(FileIo& io, const PageKey& key, std::span<const std::byte> page) {
  const bool is_there = co_await exists(io, key);
  if (is_there) {
    ++counters_.already_there;
    index_.touch(key, format_.record_bytes());
    co_return true;
  }
  if (!index_.try_reserve(format_.record_bytes())) co_return false;
  // Whoever wants room says so before looking whether others do: of two at once, one at least sees the other.
  const int64_t begin_ns = index_.now_ns();
  const bool is_announced = folder_.append_change(key, PageChange::Kind::kWriting, begin_ns);
  folder_.poll_journal();
  bool ok = is_announced && index_.has_room();
  if (ok) ok = co_await evictor_.make_room(io);
  if (ok) ok = co_await write_file(io, key, page);
  if (!ok) {
    index_.release(format_.record_bytes());
    if (is_announced) (void)folder_.append_change(key, PageChange::Kind::kRemoved, begin_ns);
    co_return false;
  }
  index_.commit(key, format_.record_bytes());
  (void)folder_.append_change(key, PageChange::Kind::kWritten, index_.now_ns());
  ++counters_.written;
  counters_.bytes_written += page.size();
  co_return true;
}

IoTask<bool> FilePages::write_file(FileIo& io, const PageKey& key, std::span<const std::byte> page) {
  const std::string name = StoreFolder::page_name(key);
  const auto folder = folder_.folder();
  const std::string temp = folder->temp_name();
  const std::unique_ptr<PageHeader> header = format_.make_header(key, page);
  const int64_t opened = co_await io.open(folder->descriptor(), temp.c_str(), O_WRONLY | O_CREAT | O_EXCL);
  if (opened < 0) {
    folder_.log_failure(*folder, "making", temp, opened);
    co_return false;
  }
  const auto file = static_cast<int>(opened);
  const char* step = "writing";
  int64_t result = co_await write_record(io, file, *header, page);
  if (result == 0) {
    step = "syncing";
    result = co_await io.sync(file);
  }
  const int64_t closed = co_await io.close(file);
  if (result == 0) result = closed;
  if (result == 0) {
    step = "renaming";
    result = co_await io.rename(folder->descriptor(), temp.c_str(), name.c_str());
  }
  if (result == 0) co_return true;
  folder_.log_failure(*folder, step, temp, result);
  co_await io.unlink(folder->descriptor(), temp.c_str());
  co_return false;
}

}  // namespace millrace::cache
