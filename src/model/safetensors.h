#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "model/mapped_file.h"
#include "tensor/host_tensor.h"

namespace millrace::model {

/// A tensor as a file stores it, of any dtype.
struct StoredTensor {
  std::string_view dtype;  ///< "I8"
  std::span<const int64_t> shape;
  std::span<const std::byte> bytes;
};

/// One safetensors file, mapped: a little-endian u64 header length, that many bytes of JSON
/// {name: {dtype, shape, data_offsets}}, then the data. The header is checked in full when the file is opened (bounds,
/// byte counts, overlaps, duplicates), so `find` hands out only bytes that lie within the file. Opening reads the
/// header alone; weights are read when their pages are touched. Immutable, hence safe to share between threads. A file
/// that is truncated by someone else while it is mapped ends the process with SIGBUS.
class SafetensorsFile {
 public:
  /// Errors (kNotFound, kData) begin with the path.
  [[nodiscard]] static Result<std::unique_ptr<SafetensorsFile>> open(const std::filesystem::path& path);

  [[nodiscard]] bool contains(std::string_view name) const { return entries_.contains(std::string(name)); }
  /// The tensor borrows this file's mapping. Errors: kNotFound; kData for a dtype or rank that is not computed with.
  [[nodiscard]] Result<tensor::HostTensor> find(std::string_view name) const;
  /// As stored, borrowed too. Errors: kNotFound.
  [[nodiscard]] Result<StoredTensor> find_stored(std::string_view name) const;
  /// Lets go of the memory that a tensor was read into; reading it again brings it back. Of a name that is not here,
  /// nothing.
  void release(std::string_view name) const;
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] size_t tensor_count() const { return entries_.size(); }
  [[nodiscard]] std::vector<std::string_view> names() const;

 private:
  struct Entry {
    std::string dtype;  ///< as written; may be one that is not known here
    std::vector<int64_t> shape;
    size_t begin = 0;  ///< of the file
    size_t end = 0;
  };
  struct HeaderParser;

  SafetensorsFile() = default;

  std::string path_;
  std::unique_ptr<MappedFile> mapping_;
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace millrace::model
