#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "weights/stored_format.h"
#include "weights/stored_weight.h"
#include "weights/weight_format.h"

namespace millrace::weights {

/// A tensor as safetensors stores it.
struct RawTensor {
  std::string_view dtype;  ///< "F8_E4M3"
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

/// Finds a tensor of the checkpoint by its name. A tensor that is not there is kNotFound.
using TensorLookup = std::function<Result<RawTensor>(const std::string& name)>;

/// Finds the quantized weight "P.weight" [rows, cols]; nothing when it is stored as plain floating point, or not at
/// all. Errors: kData for tensors that are missing, or have other shapes or dtypes than the format wants, or values
/// that no writer makes. They name the tensor, what was found and what was wanted.
[[nodiscard]] Result<std::optional<StoredWeight>> find_stored_weight(const TensorLookup& lookup,
                                                                     const WeightFormat& format,
                                                                     const std::string& weight_name, int64_t rows,
                                                                     int64_t cols);

/// Returns the tensors of a weight whose values find_stored_format() reads: its group indices, unless the format says
/// that groups are in order.
[[nodiscard]] std::vector<std::string> names_read_for_format(const WeightFormat& format, std::string_view weight_name);

/// Finds the format of such a weight, on which all ranks agree without each other's weights. Of the tensors that
/// `lookup` returns only those of names_read_for_format() need their values. Errors: those of find_stored_weight()
/// about names, shapes and dtypes.
[[nodiscard]] Result<std::optional<StoredFormat>> find_stored_format(const TensorLookup& lookup,
                                                                     const WeightFormat& format,
                                                                     const std::string& weight_name, int64_t rows,
                                                                     int64_t cols);

}  // namespace millrace::weights
