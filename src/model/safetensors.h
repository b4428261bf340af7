#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "model/mapped_file.h"
#include "tensor/host_tensor.h"

namespace millrace::model {

/// A tensor of any dtype, as a file stores it.
struct StoredTensor {
  std::string_view dtype;  ///< e.g. "I8"
  std::span<const int64_t> shape;
  std::span<const std::byte> bytes;
};

/// One mapped safetensors file: a little-endian u64 header length, that many bytes of JSON {name: {dtype, shape,
/// data_offsets}}, then the data. Opening checks the whole header (bounds, byte counts, overlaps, duplicates), so
/// `find` returns only bytes within the file. Opening reads the header alone; the first access to weights reads them.
/// Immutable, hence safe to share between threads. If another process truncates the mapped file, this process ends with
/// SIGBUS.
class SafetensorsFile {
 public:
  /// Opens `path`. Errors (kNotFound, kData) begin with the path.
  [[nodiscard]] static Result<std::unique_ptr<SafetensorsFile>> open(const std::filesystem::path& path);

  [[nodiscard]] bool contains(std::string_view name) const { return entries_.contains(std::string(name)); }
  /// Finds a tensor, which borrows this file's mapping. Errors: kNotFound; kData for an unsupported dtype or rank.
  [[nodiscard]] Result<tensor::HostTensor> find(std::string_view name) const;
  /// Finds a tensor as stored, which borrows the mapping too. Error: kNotFound.
  [[nodiscard]] Result<StoredTensor> find_stored(std::string_view name) const;
  /// Returns where a tensor's bytes lie in the file. An unknown name has none.
  [[nodiscard]] std::pair<uint64_t, uint64_t> byte_range(std::string_view name) const;
  /// Releases the memory that caches a tensor's bytes; a later access reads them again. An unknown name has no effect.
  void release(std::string_view name) const;
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] size_t tensor_count() const { return entries_.size(); }
  [[nodiscard]] std::vector<std::string_view> names() const;

 private:
  struct Entry {
    std::string dtype;  ///< as written; may be an unsupported one
    std::vector<int64_t> shape;
    size_t begin = 0;  ///< offset in the file
    size_t end = 0;
  };
  struct HeaderParser;

  SafetensorsFile() = default;

  std::string path_;
  std::unique_ptr<MappedFile> mapping_;
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace millrace::model
