#include "cache/store/file_pages.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace millrace::cache {
namespace {

/// Memory that a record is read into or written from.
using Parts = std::array<iovec, 2>;

/// What is left of `parts` after the first `done` bytes.
std::span<const iovec> rest_of(Parts& rest, const Parts& parts, size_t done) {
  rest = parts;
  size_t first = 0;
  while (first < rest.size() && done >= rest[first].iov_len) done -= rest[first++].iov_len;
  if (first == rest.size()) return {};
  rest[first].iov_base = static_cast<std::byte*>(rest[first].iov_base) + done;
  rest[first].iov_len -= done;
  return std::span(rest).subspan(first);
}

/// Whether the kernel may move these bytes to or from a disk without a copy.
bool is_aligned(std::span<const std::byte> bytes) {
  return reinterpret_cast<uintptr_t>(bytes.data()) % kBlockBytes == 0 && bytes.size() % kBlockBytes == 0;
}

enum class Residency { kMemory, kDisk, kUnknown };

/// Where a file's bytes are: all in the page cache, or not. Kernels before 6.5 do not tell.
Residency residency_of(int file, uint64_t bytes) {
  constexpr int64_t kCachestat = 451;  // the same on every architecture; not every libc knows it
  struct {
    uint64_t offset, length;
  } range{0, bytes};
  struct {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
  } found{};
  if (syscall(kCachestat, file, &range, &found, 0) != 0) return Residency::kUnknown;
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return found.cached >= (bytes + page - 1) / page ? Residency::kMemory : Residency::kDisk;
}

}  // namespace

FilePages::FilePages(std::unique_ptr<StoreFolder> folder, const StoreIdentity& identity,
                     const FileStoreOptions& options, const RecordFormat& form, StoreCounters& counters)
    : identity_(identity),
      store_path_(options.path),
      path_(folder->path()),
      folder_(std::move(folder)),
      abandoned_(options.path, form.identity(), options.abandoned_after),
      format_(form),
      counters_(counters),
      index_(options.max_bytes) {}

std::shared_ptr<StoreFolder> FilePages::folder() const {
  const std::lock_guard lock(folder_mutex_);
  return folder_;
}

void FilePages::log_failure(const StoreFolder& folder, const char* step, const std::string& name, int64_t error) {
  ++counters_.errors;
  if (error == -ENOENT) {
    if (folder.is_gone()) return;  // that has a line of its own
    folder_damaged_ = true;
  }
  log_.warn(fmt::format("{} {}", step, error), "page store {}: {} {}: {}", path_, step, name,
            std::strerror(static_cast<int>(-error)));
}

IoTask<bool> FilePages::exists(FileIo& io, const PageKey& key) {
  const std::string name = StoreFolder::page_name(key);
  const auto folder = this->folder();
  struct statx status{};
  const int64_t result = co_await io.stat(folder->descriptor(), name.c_str(), status);
  if (result < 0 && result != -ENOENT) log_failure(*folder, "looking for", name, result);
  co_return result == 0 && S_ISREG(status.stx_mode) && status.stx_size == format_.record_bytes();
}

IoTask<int64_t> FilePages::read_all(FileIo& io, int file, PageHeader& header, std::span<std::byte> into) {
  struct stat status{};
  if (fstat(file, &status) != 0) co_return -int64_t{errno};
  if (!S_ISREG(status.st_mode)) co_return S_ISDIR(status.st_mode) ? -EISDIR : -EINVAL;
  if (static_cast<uint64_t>(status.st_size) != format_.record_bytes()) co_return status.st_size;
  const Parts parts = {iovec{&header, sizeof header}, iovec{into.data(), into.size()}};
  const Residency residence = residency_of(file, format_.record_bytes());
  if (residence == Residency::kMemory) {
    // A mere copy, for which a ring is a detour.
    const ssize_t count = preadv(file, parts.data(), static_cast<int>(parts.size()), 0);
    if (count == status.st_size) co_return count;
  }
  // From the disk straight into the caller's memory: the host tier above keeps what comes, so the kernel need not.
  bool direct = residence == Residency::kDisk && is_aligned(into) && fcntl(file, F_SETFL, O_DIRECT) == 0;
  Parts rest;
  size_t done = 0;
  while (done < format_.record_bytes()) {
    const auto wanted = rest_of(rest, parts, done);
    const int64_t count = co_await io.read(file, wanted, done);
    if (count == -EINTR) continue;
    if (count == -EINVAL && direct) {
      direct = false;
      if (fcntl(file, F_SETFL, 0) == 0) continue;
    }
    if (count < 0) co_return count;
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  co_return static_cast<int64_t>(done);
}

IoTask<bool> FilePages::get(FileIo& io, const PageKey& key, std::span<std::byte> into) {
  const std::string name = StoreFolder::page_name(key);
  const auto folder = this->folder();
  const int64_t begin_ns = index_.now_ns();
  const int64_t opened = co_await io.open(folder->descriptor(), name.c_str(), O_RDONLY | O_NOFOLLOW);
  if (opened == -ENOENT) {
    index_.forget(key, begin_ns);  // a put may have ended meanwhile
    co_return false;
  }
  if (opened < 0) {
    log_failure(*folder, "opening", name, opened);
    co_return false;
  }
  const auto file = static_cast<int>(opened);
  const auto header = std::make_unique<PageHeader>();
  const int64_t found_bytes = co_await read_all(io, file, *header, into);
  co_await io.close(file);
  if (found_bytes < 0) {
    log_failure(*folder, "reading", name, found_bytes);
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
  log_.warn(foreign ? "foreign" : "corrupt", "page store {}: page {} is {} ({} bytes found, {} wanted): deleting it",
            path_, name, foreign ? "of another identity, key or version" : "corrupt", found_bytes,
            format_.record_bytes());
  index_.forget(key);
  const auto folder = this->folder();
  const int64_t at_ns = index_.now_ns();
  const int64_t result = co_await io.unlink(folder->descriptor(), name.c_str());
  if (result == 0) (void)append_change(key, PageChange::Kind::kRemoved, at_ns);
  if (result < 0 && result != -ENOENT) log_failure(*folder, "deleting", name, result);
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
  const bool is_announced = append_change(key, PageChange::Kind::kWriting, begin_ns);
  poll_journal();
  bool ok = is_announced && index_.has_room();
  if (ok) ok = co_await make_room(io);
  if (ok) ok = co_await write_record(io, key, page);
  if (!ok) {
    index_.release(format_.record_bytes());
    if (is_announced) (void)append_change(key, PageChange::Kind::kRemoved, begin_ns);
    co_return false;
  }
  index_.commit(key, format_.record_bytes());
  (void)append_change(key, PageChange::Kind::kWritten, index_.now_ns());
  ++counters_.written;
  counters_.bytes_written += page.size();
  co_return true;
}

IoTask<int64_t> FilePages::write_all(FileIo& io, int file, const PageHeader& header, std::span<const std::byte> page) {
  const Parts parts = {iovec{const_cast<PageHeader*>(&header), sizeof header},
                       iovec{const_cast<std::byte*>(page.data()), page.size()}};
  Parts rest;
  size_t done = 0;
  while (done < format_.record_bytes()) {
    const auto left = rest_of(rest, parts, done);
    const int64_t count = co_await io.write(file, left, done);
    if (count == -EINTR) continue;
    if (count < 0) co_return count;
    if (count == 0) co_return -EIO;
    done += static_cast<size_t>(count);
  }
  co_return 0;
}

IoTask<bool> FilePages::write_record(FileIo& io, const PageKey& key, std::span<const std::byte> page) {
  const std::string name = StoreFolder::page_name(key);
  const auto pinned = folder();
  const std::string temp = pinned->temp_name();
  const int folder = pinned->descriptor();
  const std::unique_ptr<PageHeader> header = format_.make_header(key, page);
  const int64_t opened = co_await io.open(folder, temp.c_str(), O_WRONLY | O_CREAT | O_EXCL);
  if (opened < 0) {
    log_failure(*pinned, "making", temp, opened);
    co_return false;
  }
  const auto file = static_cast<int>(opened);
  const char* step = "writing";
  int64_t result = co_await write_all(io, file, *header, page);
  if (result == 0) {
    step = "syncing";
    result = co_await io.sync(file);
  }
  const int64_t closed = co_await io.close(file);
  if (result == 0) result = closed;
  if (result == 0) {
    step = "renaming";
    result = co_await io.rename(folder, temp.c_str(), name.c_str());
  }
  if (result == 0) co_return true;
  log_failure(*pinned, step, temp, result);
  co_await io.unlink(folder, temp.c_str());
  co_return false;
}

}  // namespace millrace::cache
