#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cache/store/file_io.h"
#include "cache/store/io_task.h"
#include "cache/store/page_record.h"

/// Reading and writing of records, a header and its page, in open files. Calls that end early or are interrupted go on.
namespace millrace::cache {

/// Writes a record from the beginning of `file`. Returns 0 or -errno.
[[nodiscard]] IoTask<int64_t> write_record(FileIo& io, int file, const PageHeader& header,
                                           std::span<const std::byte> page);
/// Reads a record from `file` when it has the size of one. Returns the bytes found, whatever their number, or -errno.
[[nodiscard]] IoTask<int64_t> read_record(FileIo& io, int file, PageHeader& header, std::span<std::byte> into);

}  // namespace millrace::cache
