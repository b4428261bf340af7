#pragma once

#include "cuda/device.h"
#include "cuda/submissions.h"
#include "tensor/backend.h"
#include "tensor/kv_dtype.h"

namespace millrace::cuda {

/// Implements Backend::reserve: allocates the scratch of every op and the memory for uploads and downloads. Lists whose
/// length clients choose (biases, history under penalties) get room for ordinary lengths. Throws std::runtime_error
/// when memory is short. Pages store keys and values as `stored`. It also throws when heads or the vocabulary exceed
/// what the ops, or a block's shared memory, support.
void reserve_scratch(Device& device, Submissions& submissions, const tensor::WorkBounds& bounds,
                     tensor::KvDType stored);

}  // namespace millrace::cuda
