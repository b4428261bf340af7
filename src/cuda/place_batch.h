#pragma once

#include "cuda/submissions.h"
#include "tensor/backend.h"

namespace millrace::cuda {

/// The bound that stands for contexts of up to `tokens`.
[[nodiscard]] int32_t context_bound(int32_t tokens);
/// What a batch of `sequences` with `pages` in all their tables takes on the device.
[[nodiscard]] size_t placed_bytes(size_t sequences, size_t pages);
/// Backend::place: brings a batch to the device in one copy, with upper bounds of what varies.
[[nodiscard]] tensor::PlacedBatch place_batch(Submissions& submissions, const tensor::BatchLayout& batch);

}  // namespace millrace::cuda
