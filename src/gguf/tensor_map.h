#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "gguf/model.h"

namespace millrace::gguf {

/// A tensor as safetensors would have it: rows of a tensor of the file.
struct MappedTensor {
  std::string_view stored_name;  ///< in the file
  weights::GgmlType type;
  std::vector<int64_t> shape;  ///< outermost first
  std::span<const std::byte> bytes;
  int64_t paired_rows = 0;  ///< rows of a head in which rows 2i and 2i+1 are rows i and i + paired_rows/2 of
                            ///< safetensors; 0: all rows are in order
  float factor = 1.0f;      ///< multiplies every value
};

/// The tensors of a model by the names that safetensors of its family have. Stacked experts and fused matrices are
/// split in place.
using TensorMap = std::unordered_map<std::string, MappedTensor>;

/// Maps the tensors of a model. A tensor of a layer that the family does not have keeps its name after the layer's.
/// Errors: kData for an unknown family, a tensor outside of the layers that has no meaning here, or a shape that cannot
/// be split.
[[nodiscard]] Result<TensorMap> map_tensors(const Model& model);

}  // namespace millrace::gguf
