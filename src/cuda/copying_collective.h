#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "cuda/device.h"
#include "cuda/submissions.h"
#include "tensor/collective.h"

/// Collectives between ranks of one process by copies on the device, for ranks that share a GPU, which NCCL refuses,
/// and where there is no NCCL.
namespace millrace::cuda {

/// Returns the id of a new group of ranks of this process.
[[nodiscard]] std::vector<std::byte> make_group_id();

/// Opens one rank's end, without waiting for the others. `device` and `submissions` outlive it. A call waits until all
/// ranks have launched what precedes it; nothing waits for the device. So work is submitted on a LaunchThread.
[[nodiscard]] std::unique_ptr<tensor::Collective> open_copying_collective(Device& device,
                                                                          const Submissions& submissions,
                                                                          const tensor::CollectiveOptions& options);

}  // namespace millrace::cuda
