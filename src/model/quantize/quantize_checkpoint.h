#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/quantization.h"

namespace millrace::model {

/// The error of one quantized tensor: the root of its squared errors over the squares of its weights.
struct TensorError {
  std::string tensor;
  double error = 0.0;
};

/// Sizes before and after quantization, and its error.
struct QuantizeReport {
  size_t tensors = 0;         ///< quantized to 8 or 4 bits
  uint64_t bytes_before = 0;  ///< of all tensors of the model
  uint64_t bytes_after = 0;
  double error = 0.0;        ///< root of the squared errors of all quantized weights over the squares of the weights
  double worst_error = 0.0;  ///< the largest such error of one tensor
  std::string worst_tensor;
  std::vector<TensorError> tensor_errors;  // [tensors], in the order of the file
};

/// Writes the model in `folder` with projections of 8 or 4 bits to `output`, a new or empty folder. It writes one
/// model.safetensors and a config.json with quantization_config, and states whether the head is tied. Other files are
/// copied unchanged, except weights in other formats. config.json comes last, so that an interrupted run leaves no
/// loadable model.
///
/// Serving `folder` with the same quantization gives the same values. A tied head has no tensor of its own and is
/// quantized when it is loaded. In the formats of compressed-tensors, w8a8_int8 and w4, the head stays unquantized, as
/// is usual for such checkpoints.
///
/// `quantization` is storable. Errors: those of read_config and Checkpoint; kConflict when `output` is not empty or the
/// model is quantized already; kInvalidArgument when a row of 4-bit weights is not whole groups; kInternal when a file
/// cannot be written.
[[nodiscard]] Result<QuantizeReport> quantize_checkpoint(const std::filesystem::path& folder,
                                                         const std::filesystem::path& output,
                                                         Quantization quantization = Quantization::kW8);

}  // namespace millrace::model
