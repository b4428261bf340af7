#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"

namespace millrace::weights {

/// The library that wrote a quantized checkpoint; kGguf: a GGUF file, each tensor of which says its type. kInt8Blocks
/// and kInt4Fp8: SGLang's blockwise_int8 and w4afp8.
enum class QuantMethod : uint8_t {
  kNone,
  kFp8,
  kCompressedTensors,
  kGptq,
  kAwq,
  kModelOpt,
  kMxfp4,
  kQuark,
  kGguf,
  kInt8Blocks,
  kInt4Fp8
};

constexpr int64_t kMxColumns = 32;     ///< columns per scale of the OCP microscaling formats
constexpr int64_t kInt4Columns = 128;  ///< columns per scale of w4afp8, unless it says others

/// How AWQ packs a weight.
enum class AwqVersion : uint8_t {
  kGemm,
  kGemv,      ///< codes, scales and zero points lie row by row
  kGemvFast,  ///< codes lie in tiles, and zero points are multiplied by the scales
};

/// What quantization_config says of how to read weights. Which tensors are quantized follows from what is stored.
struct WeightFormat {
  QuantMethod method = QuantMethod::kNone;
  int bits = 0;            ///< of packed integers: GPTQ, AWQ, w4afp8, and compressed-tensors' pack-quantized
  int64_t group_size = 0;  ///< columns per scale; 0: all
  /// Tensors may have any bits of `widths` and any of `group_sizes`. The shapes of a tensor say which it has.
  bool has_exceptions = false;
  uint32_t widths = 0;               ///< a bit 1 << n for each count of bits n
  std::vector<int64_t> group_sizes;  ///< each once, as group_size
  bool is_gptq_v2 = false;           ///< zero points are stored as they are
  bool is_symmetric = false;         ///< of GPTQ: the zero point is the middle of the codes
  bool has_groups_in_order = false;  ///< of GPTQ: neighbouring columns share scales, whatever is stored of groups
  AwqVersion awq_version = AwqVersion::kGemm;
  bool has_signed_codes = false;  ///< of Quark: integers of 4 bits are two's complement
  bool has_wider = false;         ///< of Quark: there are weights of 8 bits, too
  bool is_in_order = false;       ///< of Quark: the rows of a word are not in AWQ's order
  int64_t block_rows = 0;         ///< of FP8 and int8 with a scale per block; 0: no blocks
  int64_t block_cols = 0;

  friend bool operator==(const WeightFormat&, const WeightFormat&) = default;
};

/// Reads quantization_config. `usual_method` is the quant_method of one that does not say it. Error: kData, which names
/// the member, what was found and what was wanted.
[[nodiscard]] Result<WeightFormat> parse_weight_format(JsonObject config, std::string_view usual_method = {});

}  // namespace millrace::weights
