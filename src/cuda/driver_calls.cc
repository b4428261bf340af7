#include "cuda/driver_calls.h"

#include <cuda_runtime_api.h>

namespace millrace::cuda {
namespace {

/// The CUDA versions that introduced the calls with the signatures declared here.
constexpr unsigned kErrors = 6000;
constexpr unsigned kDevices = 2000;
constexpr unsigned kGreenContexts = 12040;
constexpr unsigned kGreenStreams = 12050;

std::string version_text(unsigned number) {
  return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

/// Finds one function. Returns empty text, or why it is missing.
template <class Function>
std::string find(const char* name, unsigned since, Function*& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t outcome = cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &status);
  if (outcome == cudaSuccess && status == cudaDriverEntryPointSuccess && found != nullptr) {
    function = reinterpret_cast<Function*>(found);
    return {};
  }
  (void)cudaGetLastError();
  int version = 0;
  (void)cudaDriverGetVersion(&version);
  return fmt::format("the driver (CUDA {}) lacks {}, wanted a driver for CUDA {} or later",
                     version_text(static_cast<unsigned>(version)), name, version_text(since));
}

Result<const DriverCalls*> find_all() {
  static DriverCalls calls;
  for (const std::string& missing :
       {find("cuGetErrorString", kErrors, calls.get_error_string), find("cuDeviceGet", kDevices, calls.device_get),
        find("cuDeviceGetDevResource", kGreenContexts, calls.device_get_dev_resource),
        find("cuDevSmResourceSplitByCount", kGreenContexts, calls.dev_sm_resource_split_by_count),
        find("cuDevResourceGenerateDesc", kGreenContexts, calls.dev_resource_generate_desc),
        find("cuGreenCtxCreate", kGreenContexts, calls.green_ctx_create),
        find("cuGreenCtxDestroy", kGreenContexts, calls.green_ctx_destroy),
        find("cuGreenCtxStreamCreate", kGreenStreams, calls.green_ctx_stream_create)}) {
    if (!missing.empty()) return make_error(ErrorCode::kUnavailable, "{}", missing);
  }
  return &calls;
}

}  // namespace

std::string DriverCalls::describe(CUresult outcome) const {
  const char* text = nullptr;
  if (get_error_string(outcome, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown error";
  return fmt::format("{} ({})", text, static_cast<int>(outcome));
}

Result<const DriverCalls*> driver_calls() {
  static const Result<const DriverCalls*> found = find_all();
  return found;
}

}  // namespace millrace::cuda
