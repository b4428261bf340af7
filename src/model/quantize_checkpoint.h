#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "base/result.h"
#include "model/quantization.h"

namespace millrace::model {

struct QuantizeReport {
  size_t tensors = 0;         ///< that were rounded to 8 bits
  uint64_t bytes_before = 0;  ///< of all tensors of the model
  uint64_t bytes_after = 0;
};

/// Writes the model in `folder` with its projections in 8 bits into `output`, a folder that is made, or is empty: one
/// model.safetensors, config.json with its quantization_config and whether the head is tied, and the files beside them
/// as they are, weights in other formats left out. config.json comes last, so that what was cut short is not taken for
/// a model. The same values come from serving `folder` with quantization; a tied head has no tensor of its own and is
/// rounded when it is loaded. With a scale per channel the head stays as it is, as in such models of other makers.
/// `quantization`: a storable one. Errors: those of read_config and Checkpoint; kConflict when there is something in
/// `output`, or the model is of 8 bits already; kInternal when a file cannot be written.
[[nodiscard]] Result<QuantizeReport> quantize_checkpoint(const std::filesystem::path& folder,
                                                         const std::filesystem::path& output,
                                                         Quantization quantization = Quantization::kW8);

}  // namespace millrace::model
