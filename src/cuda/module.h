#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cuda/cuda_backend.h"

/// The functions of millrace_cuda.so. It is loaded at run time, so that the server needs neither the CUDA runtime nor a
/// driver. Both are built from one source tree with one compiler.
namespace millrace::cuda {

/// One usable GPU.
struct GpuInfo {
  std::string description;  ///< e.g. "NVIDIA H200, sm_90, 132 SMs"
  uint64_t total_bytes = 0;
};

/// The module's function table.
struct Module {
  /// Returns the usable GPUs by number. Error: kUnavailable with the reason.
  Result<std::vector<GpuInfo>> (*list_gpus)() = nullptr;
  /// Returns the free bytes of a GPU. Unlike list_gpus, this permanently takes some memory there. Throws
  /// std::runtime_error.
  uint64_t (*free_bytes)(int device) = nullptr;
  /// Returns what a GPU offers as an end of a channel over NCCL. Throws std::runtime_error.
  tensor::ChannelSupport (*nccl_support)(int device) = nullptr;
  std::unique_ptr<tensor::Backend> (*make_backend)(const CudaOptions& options) = nullptr;
};

/// Changes with every change of the declarations above or of tensor::Backend.
inline constexpr uint32_t kModuleInterface = 23;
/// The module's one symbol. It returns null unless the module was built with this interface and program version.
inline constexpr const char* kModuleEntry = "millrace_cuda_module";
using ModuleEntry = const Module*(uint32_t interface_number, const char* version);

}  // namespace millrace::cuda
