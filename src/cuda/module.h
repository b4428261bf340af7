#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cuda/cuda_backend.h"

/// What millrace_cuda.so offers. It is loaded at run time, so that the server itself needs neither the CUDA runtime nor
/// a driver; both sides are built from one source tree with one compiler.
namespace millrace::cuda {

struct GpuInfo {
  std::string description;  ///< "NVIDIA H200, sm_90, 132 SMs"
  uint64_t total_bytes = 0;
};

struct Module {
  /// The GPUs that can be used, by number; an error (kUnavailable) says why there is none.
  Result<std::vector<GpuInfo>> (*list_gpus)() = nullptr;
  /// Memory that is free on one of them. Unlike the list this takes some of it for good. Throws std::runtime_error.
  uint64_t (*free_bytes)(int device) = nullptr;
  std::unique_ptr<tensor::Backend> (*make_backend)(const CudaOptions& options) = nullptr;
};

/// Changes when anything above does, or tensor::Backend.
inline constexpr uint32_t kModuleInterface = 8;
/// The module's one symbol: null unless it was built with this interface and version of the program.
inline constexpr const char* kModuleEntry = "millrace_cuda_module";
using ModuleEntry = const Module*(uint32_t interface_number, const char* version);

}  // namespace millrace::cuda
