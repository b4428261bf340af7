#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace millrace::model {

/// Bytes [begin, end) of a file of a checkpoint.
struct FileRange {
  std::string file;
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Brings parts of weight files into a checkpoint's folder before they are read, so that a node downloads the tensors
/// of its own layers only. Owned by a Checkpoint. Thread-safe; calls block.
class RangeSource {
 public:
  virtual ~RangeSource() = default;
  /// Returns whether the checkpoint has a file of this name.
  [[nodiscard]] virtual bool contains(std::string_view file) const = 0;
  /// Makes a file readable: it has its whole size, and the header of safetensors. The rest reads as zeros.
  [[nodiscard]] virtual Result<void> prepare_file(const std::string& file) = 0;
  /// Makes bytes of prepared files readable. Bytes that have been downloaded cost nothing.
  [[nodiscard]] virtual Result<void> fetch(std::span<const FileRange> ranges) = 0;
};

}  // namespace millrace::model
