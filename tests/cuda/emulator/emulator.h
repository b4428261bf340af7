#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>

/// Runs CUDA kernels compiled as ordinary C++ on the host. Every thread of a block is a fiber that runs until a barrier
/// or a warp collective and continues when the others have arrived. Blocks run one by one on the calling thread. A seed
/// determines the order of blocks and threads. Device memory is host memory.
namespace millrace::emulator {

/// A kernel did what a device would not do, or not reliably. The text names the kernel, the block and the source lines.
class KernelFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One launch: `body` runs once per thread. Throws KernelFault and then abandons the threads in flight.
struct Launch {
  const char* name = "";
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  uint32_t cluster_blocks = 1;
  std::function<void()> body;
};
void run(const Launch& launch);

/// Sets the seed of the order in which threads and blocks run from now on, in this process.
void set_order_seed(uint64_t seed);

/// Enqueues work on a stream. The program that links the kernels defines it: as an immediate call (synchronous.cc) or
/// as a part of an emulated runtime.
void emulated_enqueue(cudaStream_t stream, std::function<void()> work);

}  // namespace millrace::emulator
