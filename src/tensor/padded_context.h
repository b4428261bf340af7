#pragma once

#include <bit>
#include <cstdint>

namespace millrace::tensor {

/// Returns BatchLayout::padded_context of a batch whose longest sequence has `longest` tokens, at most 2^30, for an
/// indexer that chooses `chosen`: few values, since each has graphs of its own.
[[nodiscard]] constexpr int32_t padded_context(int32_t longest, int32_t chosen) {
  return longest <= chosen ? chosen : static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(longest)));
}

}  // namespace millrace::tensor
