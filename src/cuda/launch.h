#pragma once

// How kernels are launched, by nvcc or, with MILLRACE_EMULATED_CUDA, under the emulator of tests/cuda.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#ifdef MILLRACE_EMULATED_CUDA
#include "cuda/emulator/device.h"
#endif

namespace millrace::cuda {

[[nodiscard]] constexpr __host__ __device__ int32_t ceil_div(int32_t a, int32_t b) {
  return (a + b - 1) / b;
}
[[nodiscard]] constexpr __host__ __device__ int32_t round_up(int32_t a, int32_t b) {
  return ceil_div(a, b) * b;
}

/// One stretch of work on a stream. A grid without blocks is no launch.
struct LaunchShape {
  const char* name = "";  ///< of the kernel, for messages
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
};

#ifdef MILLRACE_EMULATED_CUDA

/// The block's dynamic shared memory, at an address that is a multiple of 128.
inline std::byte* shared_memory() {
  return emulator::current_block().shared;
}

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream, Arguments... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  emulator::emulated_enqueue(stream, [=] {
    emulator::run({shape.name, shape.grid, shape.block, shape.shared_bytes, [=] { kernel(arguments...); }});
  });
}

#else

__device__ inline std::byte* shared_memory() {
  extern __shared__ __align__(128) unsigned char bytes[];
  return reinterpret_cast<std::byte*>(bytes);
}

inline void check_launch(const char* kernel, const char* step, cudaError_t status) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // it is told here, and must not be told again by a later call
  throw std::runtime_error(std::string("CUDA kernel ") + kernel + ": " + step + ": " + cudaGetErrorString(status));
}

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream, Arguments... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  constexpr size_t kSharedWithoutAsking = 48 * 1024;
  const auto* entry = reinterpret_cast<const void*>(kernel);
  if (shape.shared_bytes > kSharedWithoutAsking) {
    const std::string step = std::to_string(shape.shared_bytes) + " bytes of shared memory";
    check_launch(
        shape.name, step.c_str(),
        cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes)));
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  const auto pass = [&](Parameters... parameters) {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
    check_launch(shape.name, "launch", cudaLaunchKernelExC(&config, entry, pointers));
  };
  pass(arguments...);
}

#endif

}  // namespace millrace::cuda
