#pragma once

#include <cuda.h>

#include <string>

#include "base/result.h"

namespace millrace::cuda {

/// The driver's functions in use. The runtime, which has loaded the driver, provides their addresses.
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

/// Finds the functions once per process. Error: kUnavailable, naming the first missing function and the driver's
/// version.
[[nodiscard]] Result<const DriverCalls*> driver_calls();

}  // namespace millrace::cuda
