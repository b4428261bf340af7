#pragma once

#include <cstdint>
#include <optional>

#include "weights/stored_weight.h"
#include "weights/weight_codes.h"

namespace millrace::weights {

/// What decides how a weight can be kept in memory: all of its description but numbers and types of scales. Weights of
/// equal formats can have one layout in memory.
struct StoredFormat {
  enum class Kind : uint8_t {
    kDecoded,  ///< floating point, or a format that is decoded
    kW8,       ///< integers of 8 bits that are not decoded (tensor/w8.h)
    kFp8,      ///< weights::is_fp8()
    kCodes,    ///< code_layout()
  };
  Kind kind = Kind::kDecoded;
  CodeLayout layout = {};     ///< of kCodes
  bool has_zeros = false;     ///< of kCodes: zero points that differ, or are not those of codes in memory
  uint32_t ggml_type = 0;     ///< of blocks; 0: of none
  int64_t scale_columns = 0;  ///< that share a scale; 0: all

  friend bool operator==(const StoredFormat&, const StoredFormat&) = default;
};

/// Returns the format of a weight. Of its numbers it reads the group index alone.
[[nodiscard]] StoredFormat stored_format(const StoredWeight& weight);

/// Returns the format of MXFP4.
[[nodiscard]] StoredFormat mxfp4_format();

}  // namespace millrace::weights
