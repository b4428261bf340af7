#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "gguf/tensor_map.h"
#include "model/gguf_files.h"
#include "model/range_source.h"
#include "model/safetensors.h"
#include "tensor/host_tensor.h"
#include "weights/stored_format.h"
#include "model/stored_latents.h"
#include "weights/stored_weight.h"

namespace millrace::model {

/// The tensors of a GGUF model by the names that safetensors have. Owned by a Checkpoint; all const methods are
/// thread-safe. Tensors borrow its memory.
class GgufTensors {
 public:
  /// Opens the model at `path`, whose header is there. `source` brings the bytes of tensors before they are read; null:
  /// they are there. Errors: those of GgufFiles::open and gguf::map_tensors; those of RangeSource here and in all that
  /// find tensors.
  [[nodiscard]] static Result<std::unique_ptr<GgufTensors>> open(const std::filesystem::path& path,
                                                                 std::shared_ptr<RangeSource> source = {});

  /// Brings the bytes of tensors at once. Names that the model lacks are passed over.
  [[nodiscard]] Result<void> prepare(std::span<const std::string> names) const;

  /// Finds a tensor as floating point: in place, or decoded where it is a vector of another type or order, or is joined
  /// from several. Errors:
  /// kNotFound; kData for a matrix that find_weight() has.
  [[nodiscard]] Result<tensor::HostTensor> find(std::string_view name) const;
  /// Finds a tensor as stored, in the order of its rows in the file. Error: kNotFound.
  [[nodiscard]] Result<StoredTensor> find_stored(std::string_view name) const;
  /// Finds a matrix that is decoded while it is packed; nothing when find() has it in place. Errors: kNotFound; kData
  /// for another shape.
  [[nodiscard]] Result<std::optional<weights::StoredWeight>> find_weight(std::string_view name,
                                                                         const tensor::Shape& shape) const;
  /// Finds the format of such a matrix from the header. Errors: those of find_weight().
  [[nodiscard]] Result<std::optional<weights::StoredFormat>> find_format(std::string_view name,
                                                                         const tensor::Shape& shape) const;
  /// Finds the parts of an expansion of latents; nothing where the file stores it as one. Errors: those of
  /// find_weight().
  [[nodiscard]] Result<std::optional<StoredLatents>> find_latents(std::string_view name,
                                                                  const tensor::Shape& shape) const;
  /// Frees the pages of a tensor; of a joined latent expansion the values, once each of its finders has released it.
  void release(std::string_view name) const;
  [[nodiscard]] bool contains(std::string_view name) const { return tensors_.contains(std::string(name)); }
  [[nodiscard]] std::vector<std::string> names() const;

 private:
  GgufTensors() = default;
  [[nodiscard]] Result<const gguf::MappedTensor*> mapped(std::string_view name) const;
  /// Describes a matrix that find_weight() or find_format() finds. Its bytes need not be there.
  [[nodiscard]] Result<std::optional<weights::StoredWeight>> describe(std::string_view name,
                                                                      const tensor::Shape& shape) const;
  /// Returns the tensor of a matrix. Errors: those of find_weight().
  [[nodiscard]] Result<const gguf::MappedTensor*> matrix(std::string_view name, const tensor::Shape& shape) const;
  /// Returns a tensor whose bytes are there.
  [[nodiscard]] Result<const gguf::MappedTensor*> filled(std::string_view name) const;

  std::shared_ptr<RangeSource> source_;
  std::unique_ptr<GgufFiles> files_;
  gguf::TensorMap tensors_;
  struct Decoded {
    std::vector<float> values;
    int32_t user_count = 0;  ///< finders that have not released it
  };
  mutable std::mutex mutex_;                                  ///< guards decoded_
  mutable std::unordered_map<std::string, Decoded> decoded_;  ///< what is not in place
};

}  // namespace millrace::model
