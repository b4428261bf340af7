#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "model/quantization.h"
#include "model/safetensors.h"
#include "tensor/host_tensor.h"
#include "tensor/w8.h"

namespace millrace::model {

/// The weights in a checkpoint folder: model.safetensors, or model.safetensors.index.json and its shards. A shard is
/// mapped when the first of its tensors is asked for, so a stage needs only the shards of its own layers. `find` is
/// thread-safe. Tensors borrow the mapping: the checkpoint outlives them.
class Checkpoint {
 public:
  /// Errors begin with the path: kNotFound when the folder holds neither file, kData for a malformed one.
  [[nodiscard]] static Result<std::unique_ptr<Checkpoint>> open(const std::filesystem::path& folder);

  /// Errors: kNotFound for an unknown name; kData for a missing, truncated or malformed shard, or a tensor that the
  /// index names but the shard lacks.
  [[nodiscard]] Result<tensor::HostTensor> find(std::string_view name) const;
  /// As above, and kData when the shape is not `wanted`.
  [[nodiscard]] Result<tensor::HostTensor> find(std::string_view name, const tensor::Shape& wanted) const;
  /// As SafetensorsFile::find_stored. Errors as above.
  [[nodiscard]] Result<StoredTensor> find_stored(std::string_view name) const;
  /// A matrix stored in 8 bits with its scales: one per row, or per group of a row. Errors as above.
  [[nodiscard]] Result<tensor::W8Matrix> find_w8(std::string_view name, const tensor::Shape& wanted,
                                                 bool per_channel_scales) const;
  /// As SafetensorsFile::release, of a tensor and, stored in 8 bits, of its scales.
  void release(std::string_view name) const;
  /// Listed in the index, or held by the single file.
  [[nodiscard]] bool contains(std::string_view name) const;
  /// Of all tensors, in any order.
  [[nodiscard]] std::vector<std::string_view> names() const;
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

 private:
  explicit Checkpoint(std::filesystem::path folder) : folder_(std::move(folder)) {}
  [[nodiscard]] Result<void> read_index(const std::filesystem::path& path);
  [[nodiscard]] Result<const SafetensorsFile*> shard(const std::string& file_name) const;
  /// The file that holds a tensor.
  [[nodiscard]] Result<const SafetensorsFile*> file_of(std::string_view name) const;
  [[nodiscard]] Result<std::span<const std::byte>> find_bytes(std::string_view name, std::string_view dtype,
                                                              const tensor::Shape& shape) const;

  std::filesystem::path folder_;
  std::unique_ptr<SafetensorsFile> single_;
  std::unordered_map<std::string, std::string> shard_of_;  ///< tensor name to file name; empty with a single file
  mutable std::mutex mutex_;                               ///< guards shards_
  mutable std::unordered_map<std::string, std::unique_ptr<SafetensorsFile>> shards_;
};

}  // namespace millrace::model
