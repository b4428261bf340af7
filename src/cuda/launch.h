#pragma once

// Launches kernels: compiled by nvcc or, with MILLRACE_EMULATED_CUDA, under the emulator of tests/cuda.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#ifdef MILLRACE_EMULATED_CUDA
#include "cuda/emulator/device.h"
#else
#include "cuda/error.h"
#include "cuda/shared_memory_limits.h"
#endif

namespace millrace::cuda {

[[nodiscard]] constexpr __host__ __device__ int32_t ceil_div(int32_t a, int32_t b) {
  return (a + b - 1) / b;
}
[[nodiscard]] constexpr __host__ __device__ int32_t round_up(int32_t a, int32_t b) {
  return ceil_div(a, b) * b;
}

/// Shared memory, in bytes, that a block may have on every device from compute capability 8.0 on; 8.6 and 8.9 have the
/// least.
inline constexpr size_t kPortableSharedBytes = 99 << 10;
/// Shared memory, in bytes, that a block may have at compute capability 9.0.
inline constexpr size_t kHopperSharedBytes = 227 << 10;

/// The dimensions of one kernel launch. A grid without blocks launches nothing.
struct LaunchShape {
  const char* name = "";  ///< of the kernel, for messages
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  uint32_t cluster_blocks = 1;  ///< consecutive blocks of a cluster
};

#ifdef MILLRACE_EMULATED_CUDA

/// Returns the block's dynamic shared memory, aligned to 1024 bytes.
inline std::byte* shared_memory() {
  return emulator::current_block().shared;
}

template <class... Parameters, class... Arguments>
void launch_kernel(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
                   Arguments... arguments) {
  emulator::emulated_enqueue(stream, [=] {
    emulator::run({.name = shape.name,
                   .grid = shape.grid,
                   .block = shape.block,
                   .shared_bytes = shape.shared_bytes,
                   .cluster_blocks = shape.cluster_blocks,
                   .body = [=] { kernel(arguments...); }});
  });
}

template <auto kKernel, class... Arguments>
void launch(const LaunchShape& shape, cudaStream_t stream, Arguments... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  launch_kernel(kKernel, shape, stream, arguments...);
}

#else

__device__ inline std::byte* shared_memory() {
  extern __shared__ __align__(1024) unsigned char bytes[];
  return reinterpret_cast<std::byte*>(bytes);
}

inline void check_launch(const char* kernel, const char* step, cudaError_t status) {
  if (status == cudaSuccess) return;
  fail(std::string("CUDA kernel ") + kernel + ": " + step + ": " + cudaGetErrorString(status));
}

/// Allows `entry` more shared memory than the default limit.
inline void opt_in_shared_memory(const void* entry, const LaunchShape& shape, SharedMemoryLimits& limits) {
  int device = 0;
  check_launch(shape.name, "cudaGetDevice", cudaGetDevice(&device));
  limits.raise_to(device, shape.shared_bytes, [&] {
    const std::string step = std::to_string(shape.shared_bytes) + " bytes of shared memory";
    check_launch(
        shape.name, step.c_str(),
        cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes)));
  });
}

template <class... Parameters, class... Arguments>
void launch_kernel(void (*kernel)(Parameters...), SharedMemoryLimits& limits, const LaunchShape& shape,
                   cudaStream_t stream, Arguments... arguments) {
  constexpr size_t kDefaultSharedBytes = 48 * 1024;
  const auto* entry = reinterpret_cast<const void*>(kernel);
  if (shape.shared_bytes > kDefaultSharedBytes) opt_in_shared_memory(entry, shape, limits);
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute cluster{};
  if (shape.cluster_blocks > 1) {
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = shape.cluster_blocks;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.attrs = &cluster;
    config.numAttrs = 1;
  }
  const auto pass = [&](Parameters... parameters) {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
    check_launch(shape.name, "launch", cudaLaunchKernelExC(&config, entry, pointers));
  };
  pass(arguments...);
}

/// A kernel that some code launches. All are registered before main begins.
struct KernelEntry {
  explicit KernelEntry(const void* its_function) : function(its_function), before(newest) { newest = this; }
  const void* const function;
  const KernelEntry* const before;
  static inline const KernelEntry* newest = nullptr;
};
template <auto kKernel>
struct RegisteredKernel {
  static inline const KernelEntry entry{reinterpret_cast<const void*>(kKernel)};
};

template <auto kKernel, class... Arguments>
void launch(const LaunchShape& shape, cudaStream_t stream, Arguments... arguments) {
  static SharedMemoryLimits limits;  // of this kernel
  (void)&RegisteredKernel<kKernel>::entry;
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  launch_kernel(kKernel, limits, shape, stream, arguments...);
}

#endif

}  // namespace millrace::cuda
