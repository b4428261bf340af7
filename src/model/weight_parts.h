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
#include "model/expert_formats.h"
#include "model/rank_layout.h"
#include "model/stored_latents.h"
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
  std::optional<StoredLatents> latents;         // in place of `tensor` where both parts stay in codes
  tensor::TermRange rows;                       // of `stored`, or of the expansion of `latents`
  std::optional<tensor::TermRange> columns;
  std::vector<int64_t> order;  // of rows, relative to the first; empty: as they are
  const TensorSpec* spec = nullptr;
  size_t bytes = 0;
};

/// The codes of a rank's heads of StoredLatents.
struct LatentCodes {
  tensor::CodeStorage queries;
  tensor::CodeStorage values;
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
  bool rounds_to_bf16 = false;  ///< decoded weights are rounded to bf16
  PackingRules rules;
  int32_t threads = 0;  ///< that decode and quantize; 0: one per processor
};

/// A rank's parts of the weights of a span, as the checkpoint stores them, and their conversion to what backends pack.
/// Used by the thread that loads; the checkpoint and the config outlive it.
class WeightParts {
 public:
  WeightParts(const Checkpoint& checkpoint, const ModelConfig& config, const RankLayout& layout,
              const ConversionOptions& options);

  /// Finds the parts of all weights that the rank owns, and the formats of other ranks' experts. Errors: those of
  /// Checkpoint::find and Checkpoint::find_format.
  [[nodiscard]] Result<void> resolve(std::vector<TensorSpec> specs);

  [[nodiscard]] const RankLayout& layout() const { return layout_; }
  [[nodiscard]] const std::unordered_map<std::string, WeightPart>& all() const { return parts_; }
  [[nodiscard]] const WeightPart& part(std::string_view name) const;
  /// Returns the bits in which weights of no expert are packed together. `shards` are those of their columns, if any.
  [[nodiscard]] PackedBits packed_bits(std::span<const std::string> names, const tensor::SumShards* shards,
                                       PackedTogether together) const;
  /// Returns how the experts of a sparse layer are packed, on all ranks alike.
  [[nodiscard]] ExpertFormats expert_formats(int32_t layer) const;
  /// Returns the type that holds the scales of weights of the rank that keep their codes.
  [[nodiscard]] tensor::DType narrowest_scales(std::span<const std::string> names) const;
  /// Returns the rows of a part as floating point: in place, decoded, or copied into their order.
  [[nodiscard]] tensor::HostTensor plain(const WeightPart& part, PackingMemory& memory) const;
  /// Returns the columns of a part that is not stored in 8 bits.
  [[nodiscard]] tensor::HostTensor columns(const WeightPart& part, PackingMemory& memory) const;
  /// Returns a part in 8 bits: as stored, or quantized. The scale of a whole row takes all of its columns.
  [[nodiscard]] tensor::W8Matrix matrix(const WeightPart& part, PackingMemory& memory) const;
  /// Returns a part that is stored in E4M3, in place.
  [[nodiscard]] tensor::Fp8Matrix fp8_matrix(std::string_view name) const;
  /// Returns whether expansions of latents in codes keep them.
  [[nodiscard]] bool keeps_latents() const { return options_.rules.keeps_latents; }
  /// Returns the codes of a part that has StoredLatents.
  [[nodiscard]] LatentCodes latent_codes(const WeightPart& part) const;
  /// Returns weights that are packed together in codes, as stored or quantized: see model::code_matrices().
  [[nodiscard]] std::vector<tensor::CodeMatrix> code_matrices(std::span<const std::string> names,
                                                              PackedTogether together, PackingMemory& memory) const {
    return code_matrices(names, kept_codes(options_.rules, together), {}, memory);
  }
  /// Returns weights of an expert that are packed together in codes: as stored if `keeps` says so, else quantized.
  /// `scale_dtype` is the type of scales that are kept.
  [[nodiscard]] std::vector<tensor::CodeMatrix> expert_codes(std::span<const std::string> names, bool keeps,
                                                             std::optional<tensor::DType> scale_dtype,
                                                             PackingMemory& memory) const;

 private:
  [[nodiscard]] bool is_owned(const TensorSpec& spec) const;
  [[nodiscard]] Result<WeightPart> find(const TensorSpec& spec) const;
  [[nodiscard]] Result<void> find_rows(const TensorSpec& spec, tensor::TermRange own, WeightPart& part) const;
  /// Finds the parts of an expansion of latents, if both stay in codes.
  [[nodiscard]] Result<std::optional<StoredLatents>> find_latents(const TensorSpec& spec) const;
  [[nodiscard]] bool is_decoded() const { return config_.weight_format.method != weights::QuantMethod::kNone; }
  [[nodiscard]] bool may_have_format(const TensorSpec& spec) const;
  [[nodiscard]] Result<std::optional<weights::StoredWeight>> find_stored(const TensorSpec& spec) const;
  /// Finds the format of a weight, whichever rank has it.
  [[nodiscard]] Result<weights::StoredFormat> find_format(const TensorSpec& spec) const;
  [[nodiscard]] const weights::StoredFormat& format(const std::string& name) const;
  [[nodiscard]] std::vector<weights::StoredFormat> formats(std::span<const std::string> names) const;
  [[nodiscard]] std::vector<tensor::CodeMatrix> code_matrices(std::span<const std::string> names, KeptCodes kept,
                                                              std::optional<tensor::DType> scale_dtype,
                                                              PackingMemory& memory) const;

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const RankLayout layout_;
  const ConversionOptions options_;
  std::vector<TensorSpec> specs_;
  std::unordered_map<std::string, WeightPart> parts_;
  std::unordered_map<std::string, weights::StoredFormat> formats_;  // of matrices, and of all ranks' experts
};

}  // namespace millrace::model
