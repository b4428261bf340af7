#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/quantization.h"
#include "model/range_source.h"
#include "model/safetensors_folder.h"
#include "model/stored_latents.h"
#include "tensor/host_tensor.h"
#include "tensor/w8.h"
#include "weights/find_weight.h"

namespace millrace::model {

class GgufTensors;

/// The rows first_row, first_row + row_step, … of one plane of a tensor [planes, rows, columns] in MXFP4. It is stored
/// as blocks u8 [planes, rows, columns / 32, 16] with scales u8 [planes, rows, columns / 32].
struct Mxfp4Rows {
  std::string name;  ///< of the matrix that they are
  std::string blocks;
  std::string scales;
  tensor::Shape shape;
  int64_t plane = 0;
  int64_t first_row = 0;
  int64_t row_step = 1;
};

/// The weights in a checkpoint folder of safetensors, or in a GGUF file. A stage needs only the shards of its own
/// layers, since each is mapped when the first of its tensors is found. Names begin with "model." also where the
/// checkpoint of a model without its head leaves that out, or a wrapper has another prefix. They are those of
/// safetensors for a GGUF file too. All const methods are thread-safe. Tensors borrow the mapping: the checkpoint
/// outlives them.
class Checkpoint {
 public:
  /// Opens `folder`, or the GGUF file of that path. Errors begin with the path: kNotFound when it holds neither file,
  /// kData for a malformed one. With a `source` the folder's files are filled as they are read; its errors are those of
  /// every other call.
  [[nodiscard]] static Result<std::unique_ptr<Checkpoint>> open(const std::filesystem::path& folder,
                                                                std::shared_ptr<RangeSource> source = nullptr);

  /// Fetches tensors, and what belongs to them as scales, in few requests, where the checkpoint has a source. Unknown
  /// names are skipped.
  [[nodiscard]] Result<void> prepare(std::span<const std::string> names) const;

  /// Finds a tensor. Errors: kNotFound for an unknown name; kData for a missing, truncated or malformed shard, or a
  /// shard without the tensor that the index promises.
  [[nodiscard]] Result<tensor::HostTensor> find(std::string_view name) const;
  /// Finds a tensor of shape `wanted`. Errors: those of find(), and kData for another shape.
  [[nodiscard]] Result<tensor::HostTensor> find(std::string_view name, const tensor::Shape& wanted) const;
  /// Finds a tensor of any dtype and rank, as stored. Errors: those of find().
  [[nodiscard]] Result<StoredTensor> find_stored(std::string_view name) const;
  /// Finds the shape of a tensor of safetensors, from its header alone. Errors: those of find().
  [[nodiscard]] Result<std::vector<int64_t>> find_shape(const std::string& name) const;
  /// Finds a matrix stored in 8 bits with its scales: one per row, or per group of a row. Errors: those of find().
  [[nodiscard]] Result<tensor::W8Matrix> find_w8(std::string_view name, const tensor::Shape& wanted,
                                                 bool per_channel_scales) const;
  /// Finds the weight `name` of shape [rows, columns], or a plane of shape [planes, rows, columns], in a format that is
  /// decoded; nothing when it is stored as plain floating point. Errors: those of find() and
  /// weights::find_stored_weight.
  [[nodiscard]] Result<std::optional<weights::StoredWeight>> find_weight(std::string_view name,
                                                                         const tensor::Shape& shape,
                                                                         const weights::WeightFormat& format,
                                                                         int64_t plane = 0) const;
  /// Finds the parts of an expansion of latents where the checkpoint stores them apart, as GGUF files may. Errors:
  /// those of find_weight().
  [[nodiscard]] Result<std::optional<StoredLatents>> find_latents(std::string_view name,
                                                                  const tensor::Shape& shape) const;
  /// Fetches what find_format() reads of weights, in few requests.
  [[nodiscard]] Result<void> prepare_formats(std::span<const std::string> names,
                                             const weights::WeightFormat& format) const;
  /// Finds the format of such a weight from headers, and from group indices where `format` does not say what they
  /// hold. Errors: those of find(), and of weights::find_stored_format.
  [[nodiscard]] Result<std::optional<weights::StoredFormat>> find_format(std::string_view name,
                                                                         const tensor::Shape& shape,
                                                                         const weights::WeightFormat& format) const;
  /// Finds some rows of a plane of MXFP4 blocks. Errors: those of find(), and kData for other shapes, dtypes or scales
  /// that are not finite.
  [[nodiscard]] Result<weights::StoredWeight> find_mxfp4(const Mxfp4Rows& rows) const;
  /// Releases the page cache of a tensor and of what belongs to it, as scales. See SafetensorsFile::release.
  void release(std::string_view name) const;
  /// Returns whether the index lists the tensor, or the single file holds it.
  [[nodiscard]] bool contains(std::string_view name) const;
  /// Returns whether there is a weight "….weight", as floating point or in codes, whose tensors have names of their
  /// own.
  [[nodiscard]] bool has_weight(std::string_view name) const;
  /// Returns the names of all tensors, in any order.
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  ~Checkpoint();

 private:
  explicit Checkpoint(std::filesystem::path folder);
  /// Finds out by which prefixes the files name parts.
  void find_prefixes();
  [[nodiscard]] bool has_stored_weight(std::string_view stored_name) const;
  /// Returns the name by which the files have a tensor.
  [[nodiscard]] std::string stored_name(std::string_view name) const;
  /// Returns the name by which callers know a stored tensor.
  [[nodiscard]] std::string own_name(std::string_view stored) const;
  /// Finds a tensor of a weight. Its bytes are there with `has_values`. Errors: those of find().
  [[nodiscard]] Result<weights::RawTensor> find_raw(const std::string& name, bool has_values) const;
  /// Finds a tensor of a plane of a weight of `shape`. `part` is what its name would be if the plane were a weight of
  /// its own. Errors: those of find(), and kData for a tensor without as many planes.
  [[nodiscard]] Result<weights::RawTensor> find_plane(const std::string& part, const tensor::Shape& shape,
                                                      int64_t plane, bool has_values) const;
  [[nodiscard]] Result<std::span<const std::byte>> find_bytes(std::string_view name, std::string_view dtype,
                                                              const tensor::Shape& shape) const;

  std::filesystem::path folder_;
  std::unique_ptr<GgufTensors> gguf_;  ///< null: safetensors
  std::unique_ptr<SafetensorsFolder> files_;
  std::string_view model_prefix_ = "model.";  ///< of the stored names of layers, embedding and norm; a literal
  std::string_view head_prefix_;              ///< of the stored name of the head; a literal
  std::string_view encoder_prefix_;           ///< of the stored names of an encoder's parts; a literal
};

}  // namespace millrace::model
