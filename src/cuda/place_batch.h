#pragma once

#include "cuda/submissions.h"
#include "tensor/backend.h"

namespace millrace::cuda {

/// Backend::place: brings a batch to the device in one copy, with upper bounds of what varies.
[[nodiscard]] tensor::PlacedBatch place_batch(Submissions& submissions, const tensor::BatchLayout& batch);

}  // namespace millrace::cuda
