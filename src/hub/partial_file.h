#pragma once

#include <filesystem>
#include <memory>
#include <span>

#include "hub/byte_ranges.h"

namespace millrace::hub {

/// A file on the disk that has its whole size and some of its bytes; the others read as zeros and take no room. Beside
/// it NAME.ranges lists the bytes that are there, for later processes and for others that fill the same file. Used by
/// one thread at a time.
///
/// Everything throws ErrorException (kData) when the disk fails.
class PartialFile {
 public:
  /// Opens or creates the file. One of another size starts anew.
  PartialFile(std::filesystem::path path, uint64_t size_bytes);
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;
  ~PartialFile();

  [[nodiscard]] uint64_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] const ByteRanges& present() const { return present_; }
  /// Writes bytes, which count once record() has named them.
  void write(uint64_t begin, std::span<const std::byte> bytes);
  /// Records that all bytes of a range are written, durably. What other processes have recorded is present from then
  /// on.
  void record(ByteRange range);
  [[nodiscard]] std::vector<std::byte> read(ByteRange range) const;

 private:
  void load_ranges();
  [[nodiscard]] std::filesystem::path beside(const char* ending) const;

  const std::filesystem::path path_;
  const uint64_t size_bytes_;
  ByteRanges present_;
  int descriptor_ = -1;
};

}  // namespace millrace::hub
