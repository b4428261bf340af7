#pragma once

#include <memory>

#include "cuda/device.h"
#include "cuda/submissions.h"
#include "tensor/collective.h"

/// Collectives between GPUs by NCCL. Builds without nccl.h use nccl_absent.cc instead.
namespace millrace::cuda {

/// Opens one rank's end: a communicator of all ranks, used on the backend's compute stream. `device` and `submissions`
/// outlive it. Blocks until all ranks have opened theirs and the connections carry data; every rank therefore opens its
/// end on a thread of its own. Throws std::runtime_error, also when options.open_timeout passes.
[[nodiscard]] std::unique_ptr<tensor::Collective> open_nccl_collective(Device& device, const Submissions& submissions,
                                                                       const tensor::CollectiveOptions& options);

}  // namespace millrace::cuda
