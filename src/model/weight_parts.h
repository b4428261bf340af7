#pragma once

#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/decoded_matrix.h"
#include "model/rank_layout.h"
#include "model/tensor_list.h"
#include "model/code_parts.h"
#include "tensor/slices.h"
#include "tensor/w8.h"
#include "weights/stored_weight.h"

namespace millrace::model {

/// A rank's part of a weight: some rows in place, or some columns.
struct WeightPart {
  tensor::HostTensor tensor;                    // with all columns
  std::optional<tensor::W8Matrix> matrix;       // in place of `tensor` where it is stored in 8 bits
  std::optional<weights::StoredWeight> stored;  // in place of `tensor` where it is decoded while it is packed
  tensor::TermRange rows;                       // of `stored`
  std::optional<tensor::TermRange> columns;
  std::vector<int64_t> order;  // of rows, relative to the first; empty: as they are
  const TensorSpec* spec = nullptr;
  size_t bytes = 0;
};

/// The memory of matrices that are decoded, quantized or cut while they are packed.
struct PackingMemory {
  std::deque<DecodedMatrix> decoded;
  std::deque<tensor::CodeStorage> codes;
  std::vector<tensor::W8Storage> quantized;
  std::vector<tensor::HostSlice> slices;
  std::vector<tensor::W8Slice> w8_slices;
};

/// What WeightParts converts stored weights to.
struct ConversionOptions {
  bool rounds_to_bf16 = false;      ///< decoded weights are rounded to bf16
  bool keeps_fp8 = false;           ///< weights that are stored in E4M3 keep it, without a quantization
  bool keeps_codes = false;         ///< weights that are stored in codes of 4 bits keep them, without a quantization
  bool keeps_all_codes = false;     ///< those in other codes of tensor/code_matrix.h too, and several kinds in a stack
  bool mixes_paired_codes = false;  ///< several kinds in gate and up, and in the experts of a layer
  int32_t threads = 0;              ///< that decode and quantize; 0: one per processor
};

/// A rank's parts of the weights of a span, as the checkpoint stores them, and their conversion to what backends pack.
/// Used by the thread that loads; the checkpoint and the config outlive it.
class WeightParts {
 public:
  WeightParts(const Checkpoint& checkpoint, const ModelConfig& config, const RankLayout& layout,
              const ConversionOptions& options);

  /// Finds the parts of all weights that the rank owns. Errors: those of Checkpoint::find.
  [[nodiscard]] Result<void> resolve(std::vector<TensorSpec> specs);

  [[nodiscard]] const RankLayout& layout() const { return layout_; }
  [[nodiscard]] const std::unordered_map<std::string, WeightPart>& all() const { return parts_; }
  [[nodiscard]] const WeightPart& part(std::string_view name) const;
  /// Returns the bits in which weights are packed together. `shards` are those of their columns, if any. For experts
  /// that are stored in several formats the answer depends on those of the rank.
  [[nodiscard]] PackedBits packed_bits(std::span<const std::string> names, const tensor::SumShards* shards,
                                       PackedTogether together) const;
  /// Returns whether weights that are packed together keep the codes in which they are stored. Unless the backend mixes
  /// paired codes, experts do so only where each part is stored alike in all of `names`.
  [[nodiscard]] bool keeps_codes(std::span<const std::string> names, const tensor::SumShards* shards,
                                 PackedTogether together) const;
  /// Returns the rows of a part as floating point: in place, decoded, or copied into their order.
  [[nodiscard]] tensor::HostTensor plain(const WeightPart& part, PackingMemory& memory) const;
  /// Returns the columns of a part that is not stored in 8 bits.
  [[nodiscard]] tensor::HostTensor columns(const WeightPart& part, PackingMemory& memory) const;
  /// Returns a part in 8 bits: as stored, or quantized. The scale of a whole row takes all of its columns.
  [[nodiscard]] tensor::W8Matrix matrix(const WeightPart& part, PackingMemory& memory) const;
  /// Returns a part that is stored in E4M3, in place.
  [[nodiscard]] tensor::Fp8Matrix fp8_matrix(std::string_view name) const;
  /// Returns weights that are packed together in codes, as stored or quantized: see model::code_matrices(). Without
  /// `can_keep` all are quantized.
  [[nodiscard]] std::vector<tensor::CodeMatrix> code_matrices(std::span<const std::string> names,
                                                              PackedTogether together, PackingMemory& memory,
                                                              bool can_keep = true) const;

 private:
  /// Returns whether each part of a backend's experts is stored alike in all of `names`, or may differ there.
  [[nodiscard]] bool are_experts_alike(std::span<const std::string> names) const;
  [[nodiscard]] bool is_owned(const TensorSpec& spec) const;
  [[nodiscard]] Result<WeightPart> find(const TensorSpec& spec) const;
  [[nodiscard]] Result<void> find_rows(const TensorSpec& spec, tensor::TermRange own, WeightPart& part) const;
  [[nodiscard]] Result<std::optional<weights::StoredWeight>> find_stored(const TensorSpec& spec) const;
  [[nodiscard]] KeptCodes kept_codes(PackedTogether together) const;
  /// Returns the parts as sources of codes, without their floating point.
  [[nodiscard]] std::vector<CodeSource> code_sources(std::span<const std::string> names) const;

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const RankLayout layout_;
  const ConversionOptions options_;
  std::vector<TensorSpec> specs_;
  std::unordered_map<std::string, WeightPart> parts_;
};

}  // namespace millrace::model
