#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "tensor/backend.h"
#include "tensor/sum_shards.h"
#include "tensor/code_matrix.h"
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
};

/// How weights are packed together: one above the other, or gate with up and the experts of a layer.
enum class PackedTogether : uint8_t { kStacked, kPaired };

/// Which stored codes can be packed.
struct KeptCodes {
  bool all = false;    ///< also those of 8 bits and of groups of 16 columns
  bool mixed = false;  ///< also several kinds together
  int max_bits = 8;    ///< of codes in memory; others are quantized
  bool alike = false;  ///< the types of stored scales alone decide those in memory, so that experts have one
};

/// Returns whether weights that are packed together can keep the codes in which they are stored. `shards`, unless null,
/// are those of the columns. `sources` of experts are those of a rank.
[[nodiscard]] bool can_keep_codes(std::span<const CodeSource> sources, KeptCodes kept, const tensor::SumShards* shards);

/// Returns whether two weights are stored in one format, up to their numbers.
[[nodiscard]] bool are_stored_alike(const CodeSource& left, const CodeSource& right);

/// Returns weights that are packed together in codes. Those that can be kept are as stored, and others are quantized to
/// 4 bits, and so is NVFP4 unless all are NVFP4. Unless `kept.mixed`, all are quantized if one is. `memory` holds them.
/// At most `threads` threads work; 0: one per processor.
[[nodiscard]] std::vector<tensor::CodeMatrix> code_matrices(std::span<const CodeSource> sources, KeptCodes kept,
                                                            int32_t threads, std::deque<tensor::CodeStorage>& memory);

}  // namespace millrace::model
