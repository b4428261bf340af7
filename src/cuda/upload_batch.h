#pragma once

#include "cuda/submissions.h"
#include "tensor/backend.h"

namespace millrace::cuda {

/// The bound that stands for up to `splits` of a batch that is bounded by so many sequences.
[[nodiscard]] int32_t split_bound(int64_t splits, size_t sequences);
/// What a batch of `sequences` with `pages` in all their tables takes on the device.
[[nodiscard]] size_t uploaded_batch_bytes(size_t sequences, size_t pages);
/// Backend::upload: brings a batch to the device in one copy, with upper bounds of what varies.
[[nodiscard]] tensor::UploadedBatch upload_batch(Submissions& submissions, const tensor::BatchLayout& batch);

}  // namespace millrace::cuda
