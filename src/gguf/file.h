#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gguf/metadata.h"
#include "weights/gguf_blocks.h"

namespace millrace::gguf {

/// A tensor of a file, whose bytes it borrows.
struct Tensor {
  std::string_view name;
  weights::GgmlType type;
  std::vector<int64_t> shape;  ///< outermost first, as in safetensors; the file has them the other way around
  std::span<const std::byte> bytes;
};

/// The header of one GGUF file: metadata, and the tensors in the order of the file.
struct File {
  Metadata metadata;
  std::vector<Tensor> tensors;
  size_t header_bytes = 0;  ///< all before the first tensor
};

/// Reads the header of a file of version 2 or 3 and checks that all tensors are of a known type, lie within the file
/// and do not overlap. The bytes outlive the result. Errors: kData; they begin with `source`, the file's path, and
/// say what was found and what was wanted.
/// `read_bytes` receives how many bytes were read, also when they are refused; null: nobody asks.
[[nodiscard]] Result<File> parse_file(std::span<const std::byte> bytes, const std::string& source,
                                      uint64_t* read_bytes = nullptr);

}  // namespace millrace::gguf
