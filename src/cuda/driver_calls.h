#pragma once

#include <cuda.h>

#include <string>

#include "base/result.h"

namespace millrace::cuda {

/// What is called of the driver itself; the runtime, which has loaded it, says where it is.
struct DriverCalls {
  decltype(&cuGetErrorString) get_error_string = nullptr;
  decltype(&cuDeviceGet) device_get = nullptr;
  decltype(&cuDeviceGetDevResource) device_get_dev_resource = nullptr;
  decltype(&cuDevSmResourceSplitByCount) dev_sm_resource_split_by_count = nullptr;
  decltype(&cuDevResourceGenerateDesc) dev_resource_generate_desc = nullptr;
  decltype(&cuGreenCtxCreate) green_ctx_create = nullptr;
  decltype(&cuGreenCtxDestroy) green_ctx_destroy = nullptr;
  decltype(&cuGreenCtxStreamCreate) green_ctx_stream_create = nullptr;

  [[nodiscard]] std::string describe(CUresult outcome) const;
};

/// Found once per process. kUnavailable names the first call that the driver does not have, and its version.
[[nodiscard]] Result<const DriverCalls*> driver_calls();

}  // namespace millrace::cuda
