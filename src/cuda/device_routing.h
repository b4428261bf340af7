#pragma once

#include "cuda/kernels.h"
#include "tensor/routing.h"

namespace millrace::cuda {

/// Returns the options of routing for kernels, without the correction bias and the experts' scales, which lie in device
/// memory.
[[nodiscard]] DeviceRouting device_routing(const tensor::Routing& routing);

}  // namespace millrace::cuda
