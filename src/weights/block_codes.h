#pragma once

#include <cstdint>
#include <optional>

#include "tensor/code_matrix.h"
#include "tensor/sum_shards.h"
#include "weights/stored_weight.h"
#include "weights/weight_codes.h"

namespace millrace::weights {

/// ggml's number of NVFP4, whose tensors have a factor.
inline constexpr uint32_t kGgmlNvfp4 = 40;

/// Returns the layout of tensor/code_matrix.h for blocks of a GGUF file, by ggml's number of their type; nothing where
/// none holds them without loss.
[[nodiscard]] std::optional<CodeLayout> block_code_layout(uint32_t ggml_type);

/// Returns the type of the scales of such blocks in memory.
[[nodiscard]] tensor::DType block_code_scales(uint32_t ggml_type);

/// Converts some rows of a weight of such a type, on at most `threads` threads; 0: one per processor. The blocks have
/// no factor, NVFP4 excepted, and their columns are in order.
[[nodiscard]] tensor::CodeStorage block_codes(const StoredWeight& weight, tensor::TermRange rows, int32_t threads);

}  // namespace millrace::weights
