#pragma once

#include "cuda/submissions.h"
#include "tensor/backend.h"

namespace millrace::cuda {

/// Returns the padded bound of a batch of `sequences` with up to `splits` splits.
[[nodiscard]] int32_t split_bound(int64_t splits, size_t sequences);
/// Returns the device bytes of a batch of `sequences` with `pages` pages in all page tables.
[[nodiscard]] size_t uploaded_batch_bytes(size_t sequences, size_t pages);
/// Implements Backend::upload: one copy brings a batch to the device, with upper bounds of what varies.
[[nodiscard]] tensor::UploadedBatch upload_batch(Submissions& submissions, const tensor::BatchLayout& batch);

}  // namespace millrace::cuda
