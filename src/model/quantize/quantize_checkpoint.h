#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "base/result.h"
#include "model/quantization.h"

namespace millrace::model {

/// Sizes before and after quantization.
struct QuantizeReport {
  size_t tensors = 0;         ///< quantized to 8 bits
  uint64_t bytes_before = 0;  ///< of all tensors of the model
  uint64_t bytes_after = 0;
};

/// Writes the model in `folder` with 8-bit projections to `output`, a new or empty folder. It writes one
/// model.safetensors and a config.json with quantization_config, and states whether the head is tied. Other files are
/// copied unchanged, except weights in other formats. config.json comes last, so that an interrupted run leaves no
/// loadable model.
///
///
/// Serving `folder` with the same quantization gives the same values. A tied head has no tensor of its own and is
/// quantized when it is loaded. With a scale per channel the head stays unquantized, as is usual for such checkpoints.
///
///
/// `quantization` is storable. Errors: those of read_config and Checkpoint; kConflict when `output` is not empty or the
/// model has 8 bits already; kInternal when a file cannot be written.
[[nodiscard]] Result<QuantizeReport> quantize_checkpoint(const std::filesystem::path& folder,
                                                         const std::filesystem::path& output,
                                                         Quantization quantization = Quantization::kW8);

}  // namespace millrace::model
