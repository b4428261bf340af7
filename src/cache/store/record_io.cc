#include "cache/store/record_io.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace millrace::cache {
namespace {

/// Memory that a record is read into or written from.
using RecordParts = std::array<iovec, 2>;

/// Returns what is left of `parts` after the first `done` bytes.
std::span<const iovec> parts_after(RecordParts& rest, const RecordParts& parts, size_t done) {
  rest = parts;
  size_t first = 0;
  while (first < rest.size() && done >= rest[first].iov_len) done -= rest[first++].iov_len;
  if (first == rest.size()) return {};
  rest[first].iov_base = static_cast<std::byte*>(rest[first].iov_base) + done;
  rest[first].iov_len -= done;
  return std::span(rest).subspan(first);
}

/// Returns whether the kernel may move these bytes to or from a disk without a copy.
bool is_block_aligned(std::span<const std::byte> bytes) {
  return reinterpret_cast<uintptr_t>(bytes.data()) % kBlockBytes == 0 && bytes.size() % kBlockBytes == 0;
}

enum class FileResidency { kMemory, kDisk, kUnknown };

/// Returns whether all of a file's bytes are in the page cache. Kernels before 6.5 do not say.
FileResidency residency_of(int file, uint64_t bytes) {
  constexpr int64_t kCachestat = 451;  // the same on every architecture; not every libc knows it
  struct {
    uint64_t offset, length;
  } range{0, bytes};
  struct {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
  } found{};
  if (syscall(kCachestat, file, &range, &found, 0) != 0) return FileResidency::kUnknown;
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return found.cached >= (bytes + page - 1) / page ? FileResidency::kMemory : FileResidency::kDisk;
}

}  // namespace

IoTask<int64_t> write_record(FileIo& io, int file, const PageHeader& header, std::span<const std::byte> page) {
  const RecordParts parts = {iovec{const_cast<PageHeader*>(&header), sizeof header},
                             iovec{const_cast<std::byte*>(page.data()), page.size()}};
  const size_t record_bytes = sizeof header + page.size();
  RecordParts rest;
  size_t done = 0;
  while (done < record_bytes) {
    const auto left = parts_after(rest, parts, done);
    const int64_t count = co_await io.write(file, left, done);
    if (count == -EINTR) continue;
    if (count < 0) co_return count;
    if (count == 0) co_return -EIO;
    done += static_cast<size_t>(count);
  }
  co_return 0;
}

IoTask<int64_t> read_record(FileIo& io, int file, PageHeader& header, std::span<std::byte> into) {
  struct stat status{};
  if (fstat(file, &status) != 0) co_return -int64_t{errno};
  if (!S_ISREG(status.st_mode)) co_return S_ISDIR(status.st_mode) ? -EISDIR : -EINVAL;
  const size_t record_bytes = sizeof header + into.size();
  if (static_cast<uint64_t>(status.st_size) != record_bytes) co_return status.st_size;
  const RecordParts parts = {iovec{&header, sizeof header}, iovec{into.data(), into.size()}};
  const FileResidency residency = residency_of(file, record_bytes);
  if (residency == FileResidency::kMemory) {
    // A mere copy, for which a ring is a detour.
    const ssize_t count = preadv(file, parts.data(), static_cast<int>(parts.size()), 0);
    if (count == status.st_size) co_return count;
  }
  // Reads go from the disk straight into the caller's memory, since the host tier caches them and the kernel need not.
  bool direct = residency == FileResidency::kDisk && is_block_aligned(into) && fcntl(file, F_SETFL, O_DIRECT) == 0;
  RecordParts rest;
  size_t done = 0;
  while (done < record_bytes) {
    const auto wanted = parts_after(rest, parts, done);
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

}  // namespace millrace::cache
