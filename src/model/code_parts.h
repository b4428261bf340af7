#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "model/quantization.h"
#include "tensor/backend.h"
#include "tensor/sum_shards.h"
#include "tensor/code_matrix.h"
#include "weights/stored_format.h"
#include "weights/stored_weight.h"

namespace millrace::model {

/// The bits of weights in memory: those of the compute dtype, or fewer. kFp8 are those of E4M3, as stored. k4 are codes
/// of tensor/code_matrix.h: of 4 bits, or of 8 where those are stored.
enum class PackedBits : uint8_t { kCompute, k8, kFp8, k4 };

/// A rank's part of a weight that may be packed in codes.
struct CodeSource {
  tensor::HostTensor plain;                       ///< the rows as floating point, where `stored` is null
  const weights::StoredWeight* stored = nullptr;  ///< a weight in a format of its own, whose rows are in order
  tensor::TermRange rows;                         ///< of `stored`
  std::optional<tensor::TermRange> columns = {};  ///< of either, where the rank has not all
  weights::StoredFormat format = {};              ///< of `stored`
  std::optional<tensor::DType> scale_dtype = {};  ///< of codes that are kept; none: the narrowest
};

/// How weights are packed together: one above the other, or gate with up.
enum class PackedTogether : uint8_t { kStacked, kPaired };

/// What a backend and the flags of a model allow.
struct PackingRules {
  Quantization quantization = Quantization::kNone;
  bool quantizes_all = true;         ///< a quantization of 8 bits applies to weights that are not stored so
  bool keeps_fp8 = false;            ///< weights that are stored in E4M3 keep it, without a quantization
  bool keeps_codes = false;          ///< weights that are stored in codes keep them, without a quantization
  bool keeps_latents = false;        ///< so do expansions of latents
  bool keeps_half_minimums = false;  ///< so do codes whose minimums have factors of each 16 inputs
  bool mixes_codes = false;          ///< gate and up, and the experts of a layer, may differ in their kinds of codes

  /// Returns whether the formats of stored weights decide how weights are packed.
  [[nodiscard]] bool use_formats() const {
    return quantization == Quantization::kW4 || (quantization == Quantization::kNone && (keeps_fp8 || keeps_codes));
  }
};

/// Returns the bits in which weights of these formats are packed together. `fp8_fits` and `codes_fit` say whether they
/// can be packed so if all are in FP8, or in codes.
[[nodiscard]] PackedBits packed_bits(std::span<const weights::StoredFormat> formats, const PackingRules& rules,
                                     bool fp8_fits, bool codes_fit);

/// Which stored codes can be packed together.
struct KeptCodes {
  bool mixed = false;          ///< several kinds
  int max_bits = 8;            ///< of codes in memory; others are quantized
  bool half_minimums = false;  ///< with factors of the minimums of each 16 inputs
};

/// Returns those that the rules allow.
[[nodiscard]] KeptCodes kept_codes(const PackingRules& rules, PackedTogether together);

/// Returns whether weights that are packed together can all keep the codes in which they are stored.
[[nodiscard]] bool can_keep_codes(std::span<const weights::StoredFormat> formats, KeptCodes kept);
/// Returns whether a weight in codes can be divided so: shards begin with whole units.
[[nodiscard]] bool can_divide_codes(const tensor::SumShards& shards);

/// Returns weights that are packed together in codes. Those that can be kept are as stored, and others are quantized to
/// 4 bits, and so is NVFP4 unless all are NVFP4. Unless `kept.mixed`, all are quantized if one is. `memory` holds them.
/// At most `threads` threads work; 0: one per processor.
[[nodiscard]] std::vector<tensor::CodeMatrix> code_matrices(std::span<const CodeSource> sources, KeptCodes kept,
                                                            int32_t threads, std::deque<tensor::CodeStorage>& memory);

}  // namespace millrace::model
