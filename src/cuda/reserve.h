#pragma once

#include "cuda/device.h"
#include "cuda/submissions.h"
#include "tensor/backend.h"

namespace millrace::cuda {

/// Backend::reserve: the scratch of every op, what batches are brought to the device in, and what comes back. Lists
/// that clients make as long as they like (biases, what penalties look at) get room for ordinary ones. Throws
/// std::runtime_error where memory is short, or where heads or vocabulary are larger than the ops, or a block's shared
/// memory, can take.
void reserve_scratch(Device& device, Submissions& submissions, const tensor::WorkBounds& bounds);

}  // namespace millrace::cuda
