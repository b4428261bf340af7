#pragma once

#include "cuda/activation.cuh"
#include "cuda/batch.cuh"
#include "cuda/recurrent_kernels.h"

/// Access to the pages of a cache of states.
namespace millrace::cuda {

/// Returns a sequence's state of a layer in a page; null for kNoStatePage.
__device__ inline float* state_in_page(const DeviceKvCache& states, uint32_t page, int32_t layer) {
  if (page == kNoStatePage) return nullptr;
  return reinterpret_cast<float*>(static_cast<std::byte*>(states.data) + page * kv_page_bytes(states) +
                                  layer * kv_layer_bytes(states));
}

/// The rows of one sequence in a batch, and where its states are.
struct StateRows {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t kept_end = 0;  ///< the first draft; equal to `end` without any
  int32_t prefix = 0;
  const uint32_t* pages = nullptr;

  __device__ StateRows(const DeviceBatch& batch, int32_t sequence)
      : begin(batch.row_begin[sequence]),
        end(batch.row_begin[sequence + 1]),
        kept_end(batch.drafts == nullptr ? end : end - batch.drafts[sequence]),
        prefix(batch.prefix[sequence]),
        pages(batch.pages + batch.page_begin[sequence]) {}

  /// Returns the state before the first row; null: zeros.
  [[nodiscard]] __device__ const float* before(const DeviceKvCache& states, int32_t layer) const {
    return prefix > 0 ? state_in_page(states, pages[(prefix - 1) / states.page_size], layer) : nullptr;
  }
  /// Returns where the state after a row is kept; null: nowhere.
  [[nodiscard]] __device__ float* after(const DeviceKvCache& states, int32_t layer, int32_t row) const {
    const int32_t position = prefix + row - begin;
    const bool is_kept = row + 1 == kept_end || (row < kept_end && (position + 1) % states.page_size == 0);
    if (!is_kept) return nullptr;
    return state_in_page(states, pages[position / states.page_size], layer);
  }
};

/// Returns ln(1 + e^x).
__device__ inline float softplus_of(float x) {
  return x > 20.0f ? x : log1pf(expf(x));
}

}  // namespace millrace::cuda
