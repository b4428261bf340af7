#pragma once

#include <vector>

#include "model/config.h"
#include "model/layer_range.h"
#include "model/rank_layout.h"
#include "model/tensor_list.h"
#include "tensor/kv_dtype.h"

/// The memory that a model takes on devices, from its config.json alone.
namespace millrace::model {

/// The weights of one rank of a stage.
struct WeightMemory {
  double bytes = 0;
  double embedding_bytes = 0;    ///< of these, the table, of which a token reads one row
  double expert_bytes = 0;       ///< of these, routed experts, of which a token reads few
  double read_bytes = 0;         ///< what the computation of one token alone reads, on average over the ranks
  double active_parameters = 0;  ///< those that one token multiplies

  WeightMemory& operator+=(const WeightMemory& other);
};

/// Returns whether config.json tells in how many bits weights are stored. Otherwise only the checkpoint's tensors do,
/// and the functions here count 16.
[[nodiscard]] bool knows_stored_bits(const ModelConfig& config);

/// Returns the bits that a weight takes in memory, its scales included. `config.quantization` is what serving asks for.
/// Otherwise a weight that is stored in at most `kept_bits` bits keeps them, and any other has 16.
[[nodiscard]] double bits_in_memory(const ModelConfig& config, const TensorSpec& spec, int32_t kept_bits);

/// Returns the memory of a span on the rank that has the most of it.
[[nodiscard]] WeightMemory weight_memory(const ModelConfig& config, StageSpan span, int32_t rank_count,
                                         int32_t kept_bits);

/// Returns the memory of a span on a rank with this layout.
[[nodiscard]] WeightMemory weight_memory(const ModelConfig& config, StageSpan span, const RankLayout& layout,
                                         int32_t kept_bits);

/// Returns the bytes of the keys and values, or of the latent, of one token in a layer's cache, without padding; 0 for
/// a layer with a state in their place. What has no codes takes 16 bits.
[[nodiscard]] double cache_bytes_per_token(const ModelConfig& config, int32_t layer, int32_t rank_count,
                                           tensor::KvDType stored = tensor::KvDType::kAuto);

}  // namespace millrace::model
