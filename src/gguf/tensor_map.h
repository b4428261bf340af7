#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "gguf/model.h"
#include "weights/stored_weight.h"

namespace millrace::gguf {

/// How tensors of safetensors are made of several of a file.
enum class TensorJoin : uint8_t {
  kNone,
  /// Two matrices [n, k] give [n, 2k], whose columns are theirs in turn.
  kColumnsInTurn,
  /// Keys [heads, latents, key] and values [heads, value, latents] give [heads·(key + value), latents]. Each head has
  /// the rows of its keys and then those of its values.
  kLatentExpansion,
};

/// A tensor as safetensors would have it: rows of a tensor of the file.
struct MappedTensor {
  std::string_view stored_name;  ///< in the file
  weights::GgmlType type;
  std::vector<int64_t> shape;  ///< outermost first
  std::span<const std::byte> bytes;
  weights::StoredOrder row_order = {};  ///< those of safetensors in the file
  weights::StoredOrder column_order = {};
  float factor = 1.0f;  ///< multiplies every value
  float addend = 0.0f;  ///< is added to every value of a vector
  /// The tensors that this one is made of, which then has a shape alone.
  TensorJoin join = TensorJoin::kNone;
  std::vector<MappedTensor> parts = {};
};

/// The tensors of a model by the names that safetensors of its family have. Stacked experts and fused matrices are
/// split in place.
using TensorMap = std::unordered_map<std::string, MappedTensor>;

/// Maps the tensors of a model. A tensor of a layer that the family does not have keeps its name after the layer's.
/// Layers that predict further tokens are left out. Errors: kData for an unknown family, a tensor outside of the layers
/// that has no meaning here, a shape that cannot be split, or parts that do not fit each other.
[[nodiscard]] Result<TensorMap> map_tensors(const Model& model);

}  // namespace millrace::gguf
