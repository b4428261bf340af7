#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>

/// Runs CUDA kernels compiled as ordinary C++ on the host: every thread of a block is a fiber that runs until a barrier
/// or a warp collective and goes on when the others have come. Blocks run one after another, on the calling thread;
/// blocks and threads take their turns in an order drawn from a seed. Device memory is host memory.
namespace millrace::emulator {

/// A kernel did what a device would not do, or would not do reliably: says the kernel, the block and the places.
class KernelFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One launch: `body` runs once per thread. Throws KernelFault; the threads in flight are then abandoned.
struct Launch {
  const char* name = "";
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  std::function<void()> body;
};
void run(const Launch& launch);

/// The seed of the orders in which threads and blocks run from now on, in this process.
void set_order_seed(uint64_t seed);

/// Puts work into the order of a stream. Whoever links the kernels defines it: as a call at once (synchronous.cc) or
/// as a part of an emulated runtime.
void emulated_enqueue(cudaStream_t stream, std::function<void()> work);

}  // namespace millrace::emulator
