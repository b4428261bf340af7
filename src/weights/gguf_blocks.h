#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace millrace::weights {

/// A type of tensor in a GGUF file.
struct GgmlType {
  uint32_t id = 0;
  std::string_view name;      ///< as llama.cpp prints it: "Q4_K"
  int64_t block_weights = 1;  ///< weights per block
  size_t block_bytes = 0;
};

/// Returns the type with ggml's number `id`, if it is supported.
[[nodiscard]] std::optional<GgmlType> find_ggml_type(uint32_t id);

/// Decodes whole blocks of a supported type to f32. `out.size()` is a multiple of the block's weights, and `blocks` has
/// as many. Each value equals ggml's own, bit for bit.
void decode_blocks(uint32_t type_id, std::span<const std::byte> blocks, std::span<float> out);

}  // namespace millrace::weights
