#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/checkpoint.h"
#include "model/config.h"
#include "model/decoded_matrix.h"
#include "model/fingerprint.h"
#include "model/weight_parts.h"
#include "model/weights.h"
#include "tensor/backend.h"

namespace millrace::model {

/// What a vector's stored values become: (value + addend) · factor.
struct VectorChange {
  float addend = 0.0f;
  float factor = 1.0f;
};

/// How the experts of a layer are packed on a rank.
struct ExpertPacking {
  ExpertFormats formats;
  // Types of the scales of codes that are kept; none: each weight has its own.
  std::optional<tensor::DType> input_scales = {};  ///< of gates and ups
  std::optional<tensor::DType> down_scales = {};
};

/// Packs the parts of a span's weights on a backend and counts progress. Lives while a stage's weights are loaded, on
/// the thread that loads; what the constructor takes outlives it.
class WeightPacker {
 public:
  WeightPacker(const Checkpoint& checkpoint, tensor::Backend& backend, const ModelConfig& config,
               const LoadOptions& options);

  [[nodiscard]] const RankLayout& layout() const { return parts_.layout(); }

  /// Finds the parts of all weights that the rank owns. Errors: those of WeightParts::resolve.
  [[nodiscard]] Result<void> resolve(std::vector<TensorSpec> specs);

  /// Returns how weights are packed together: see WeightParts.
  [[nodiscard]] PackedBits packed_bits(std::span<const std::string> names,
                                       PackedTogether together = PackedTogether::kStacked) const;

  /// Returns how the experts of a sparse layer are packed. `names` [experts, parts] are those of the rank.
  [[nodiscard]] ExpertPacking expert_packing(int32_t layer, std::span<const std::string> names) const;

  /// Makes a table, which reads the tensor in place. One that is stored in a format of its own is decoded row by row as
  /// tokens need it. Where the backend does not do that, it is decoded into `decoded`.
  std::unique_ptr<tensor::EmbeddingTable> make_embedding(std::string_view name,
                                                         std::unique_ptr<DecodedMatrix>& decoded);

  /// Makes a table [rows · parts, cols / parts] that decodes a tensor's rows, cut into parts, as they are looked up.
  /// Null where the backend does not do that, and where a part is not whole blocks. It does not count the tensor.
  [[nodiscard]] std::unique_ptr<tensor::EmbeddingTable> make_decoding_table(std::string_view name, int64_t parts) const;

  /// Returns the rows of such a table in host memory, without counting them.
  [[nodiscard]] tensor::HostTensor host_table(std::string_view name, std::unique_ptr<DecodedMatrix>& decoded) const;

  /// Returns the values of a tensor, in which form it is stored whatsoever.
  std::vector<float> values(const std::string& name);

  /// Makes one vector of several, each of whose elements is changed.
  std::unique_ptr<tensor::DeviceVector> vector(const std::vector<std::string>& names, VectorChange change = {});

  /// Packs weights one above the other.
  std::unique_ptr<tensor::PackedWeight> pack(const std::vector<std::string>& names);

  /// Packs a weight whose columns are divided by `shards`. An encoder has one rank, and therefore no shards.
  std::unique_ptr<tensor::PackedWeight> pack_sharded(const std::string& name, const tensor::SumShards& shards);

  /// Packs the rank's rows of the output head, with zeros up to RankLayout::logit_columns, without counting them.
  std::unique_ptr<tensor::PackedWeight> pack_head(const std::string& name);

  /// Packs weights one above the other without quantizing them. One that is stored in 8 bits is decoded. With
  /// `keeps_f32` a single one that is stored in f32 stays so.
  std::unique_ptr<tensor::PackedWeight> pack_plain(const std::vector<std::string>& names, bool keeps_f32 = false);

  /// Packs the expansion of latents. No quantization applies to it, since queries go through its transpose, whose rows
  /// have no common scales. In FP8 or in codes it stays as stored where the backend keeps it.
  std::unique_ptr<tensor::LatentExpansion> pack_latent_expansion(const std::string& name,
                                                                 const tensor::LatentShape& shape);

  /// Packs the pair of a gated feed-forward block.
  std::unique_ptr<tensor::PackedWeight> pack_gate_up(const std::string& gate, const std::string& up);

  /// Packs the next expert as all experts of its layer are packed. `names` are its parts, in the order of
  /// expert_parts().
  void pack_expert(tensor::ExpertPacker& experts, const ExpertPacking& packing, std::span<const std::string> names);

  /// Marks a tensor as packed, hashes the part while its bytes are in memory, and then releases them.
  void count(std::string_view name);
  void release(std::string_view name) const { checkpoint_.release(name); }
  /// Releases the tensors that have the parts of several experts, after all have been counted.
  void release_shared(std::span<const std::string> names) const;

  [[nodiscard]] uint64_t total_bytes() const { return state_.bytes_total; }
  /// Returns the fingerprint of the tensors counted so far.
  [[nodiscard]] const WeightsFingerprint& fingerprint() const { return fingerprint_; }

 private:
  [[nodiscard]] const WeightPart& part(std::string_view name) const { return parts_.part(name); }
  tensor::HostTensor plain(const WeightPart& part, PackingMemory& memory) const { return parts_.plain(part, memory); }
  /// Returns the rows of a part as floating point, in `decoded` where they are stored in 8 bits.
  tensor::HostTensor unquantized(const WeightPart& part, PackingMemory& memory, std::vector<float>& decoded) const;
  tensor::HostTensor columns(const WeightPart& part, PackingMemory& memory) const {
    return parts_.columns(part, memory);
  }
  tensor::W8Matrix matrix(std::string_view name, PackingMemory& memory) const {
    return parts_.matrix(part(name), memory);
  }
  std::vector<tensor::CodeMatrix> code_matrices(std::span<const std::string> names, PackedTogether together,
                                                PackingMemory& memory) const {
    return parts_.code_matrices(names, together, memory);
  }

  /// Returns the rows of weights that are packed together, as all ranks have them.
  [[nodiscard]] int64_t whole_rows(std::span<const std::string> names) const;

  void add_to_fingerprint(const WeightPart& part);

  void report() const;

  const Checkpoint& checkpoint_;
  tensor::Backend& backend_;
  const ModelConfig& config_;
  const tensor::W8Activations activations_;
  const LoadOptions& options_;
  WeightParts parts_;
  LoadProgress state_;
  WeightsFingerprint fingerprint_;
};

}  // namespace millrace::model
