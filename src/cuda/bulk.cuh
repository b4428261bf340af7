#pragma once

// Copies by the copy engine of compute capability 9.0, which count their bytes at barriers in shared memory, and
// clusters of two blocks that receive a copy together. Only code for sm_90a may use them. Shared memory is named by its
// address in the block.

#include "cuda/mma.cuh"

#ifndef MILLRACE_EMULATED_CUDA
#include <cuda.h>

#include "cuda/sm_90a.cuh"
#endif

namespace millrace::cuda {

/// Blocks per cluster.
constexpr int kClusterBlocks = 2;

/// A barrier in shared memory: a phase ends once all arrivals and all announced bytes are there. Phases alternate
/// between parity 0 and 1, beginning with 0.
using CopyBarrier = uint64_t;

/// Returns lane 0's value, in a register that the warp shares.
__device__ inline uint32_t uniform(uint32_t value) {
  return __shfl_sync(kAllLanes, value, 0);
}

#ifdef MILLRACE_EMULATED_CUDA

#undef __grid_constant__
#define __grid_constant__
/// A matrix of 16-bit elements [rows, inputs] for copies of box_rows × kStepInputs.
struct alignas(64) RowTiles {
  emulator::TiledMatrix matrix;
};
inline RowTiles make_row_tiles(const void* x, int32_t rows, int32_t inputs, int32_t box_inputs, int32_t box_rows) {
  return {{x, rows, inputs, box_inputs, box_rows}};
}

inline uint32_t cluster_rank() {
  return emulator::current_block().cluster_rank;
}
inline void cluster_sync() {
  emulator::synchronize_cluster();
}
inline void init_barrier(uint32_t barrier, uint32_t arrivals) {
  emulator::init_barrier(barrier, arrivals);
}
inline void publish_barriers() {}
inline void arrive_at(uint32_t barrier, uint32_t rank) {
  emulator::arrive(barrier, rank);
}
inline void arrive_and_expect(uint32_t barrier, uint32_t bytes) {
  emulator::arrive_and_expect(barrier, bytes);
}
inline void wait_barrier(uint32_t barrier, uint32_t parity) {
  emulator::wait_barrier(barrier, parity);
}
inline void copy_bulk(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  emulator::copy_bulk(shared, global, bytes, barrier);
}
inline void copy_rows_to_cluster(uint32_t shared, const RowTiles& x, int32_t input, int32_t row, uint32_t barrier) {
  emulator::copy_tile_to_cluster(shared, x.matrix, input, row, barrier);
}
template <int kCount>
void take_registers() {}
template <int kCount>
void give_registers() {}
inline void warpgroup_barrier() {
  emulator::synchronize_warpgroup("bar.sync", nullptr, [](const auto&) {});
}

#else

/// A matrix of 16-bit elements [rows, inputs] for copies of boxes with the 128-byte swizzle.
using RowTiles = CUtensorMap;

/// Returns the description of x for copies of box_rows × box_inputs. x is aligned to 16 bytes, as are its rows.
inline RowTiles make_row_tiles(const void* x, int32_t rows, int32_t inputs, int32_t box_inputs, int32_t box_rows) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    constexpr unsigned kSince = 12000;
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
    check_launch(
        "product", "cuTensorMapEncodeTiled",
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kSince, cudaEnableDefault, &status));
    return reinterpret_cast<Encode>(found);
  }();
  if (encode == nullptr) fail("CUDA: the driver lacks cuTensorMapEncodeTiled, wanted CUDA 12.0");
  RowTiles tiles{};
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(inputs), static_cast<cuuint64_t>(rows)};
  const cuuint64_t row_bytes[1] = {static_cast<cuuint64_t>(inputs) * 2};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_inputs), static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t strides[2] = {1, 1};
  const CUresult outcome = encode(&tiles, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(x), sizes, row_bytes,
                                  box, strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (outcome == CUDA_SUCCESS) return tiles;
  fail("CUDA: cuTensorMapEncodeTiled: error " + std::to_string(static_cast<int>(outcome)) + " for " +
       std::to_string(rows) + " rows of " + std::to_string(inputs));
}

/// Returns this block's number in its cluster.
__device__ inline uint32_t cluster_rank() {
  uint32_t rank = 0;
  MILLRACE_ON_SM_90A(asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank)));
  return rank;
}
/// Waits for all threads of the cluster and orders their accesses to shared memory.
__device__ inline void cluster_sync() {
  MILLRACE_ON_SM_90A(asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" :: : "memory"));
}
/// Begins phase 0 of a barrier that waits for `arrivals`. Other threads may use it after publish_barriers and
/// cluster_sync.
__device__ inline void init_barrier(uint32_t barrier, uint32_t arrivals) {
  MILLRACE_ON_SM_90A(asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory"));
}
__device__ inline void publish_barriers() {
  MILLRACE_ON_SM_90A(asm volatile("fence.mbarrier_init.release.cluster;" :: : "memory"));
}
/// Arrives at the barrier at this address in block `rank` of the cluster. It orders what copies do and what wgmma has
/// read; a fence for the cluster, at each step, would cost more than the step.
__device__ inline void arrive_at(uint32_t barrier, uint32_t rank) {
  MILLRACE_ON_SM_90A(
      asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
                   "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(barrier),
                   "r"(rank) : "memory"));
}
/// Arrives and adds `bytes` to those for which the phase waits.
__device__ inline void arrive_and_expect(uint32_t barrier, uint32_t bytes) {
  MILLRACE_ON_SM_90A(
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory"));
}
/// Waits until the phase of this parity has ended, and sees what its copies wrote.
__device__ inline void wait_barrier(uint32_t barrier, uint32_t parity) {
  uint32_t ended = 0;
  while (ended == 0) {
    MILLRACE_ON_SM_90A(
        asm volatile("{.reg .pred ended; mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;"
                     "selp.u32 %0, 1, 0, ended;}" : "=r"(ended) : "r"(barrier),
                     "r"(parity) : "memory"));
  }
}
/// Starts a copy of whole 16 bytes to this block's shared memory, which counts at the barrier.
__device__ inline void copy_bulk(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  MILLRACE_ON_SM_90A(asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier) : "memory"));
}
/// Starts a copy of a box from (row, input) on to this address in every block of the cluster. It counts at the barrier
/// of this address in each. Elements outside the matrix become zeros and count as bytes.
__device__ inline void copy_rows_to_cluster(uint32_t shared, const RowTiles& x, int32_t input, int32_t row,
                                            uint32_t barrier) {
  [[maybe_unused]] constexpr uint16_t kAllBlocks = (1u << kClusterBlocks) - 1;
  MILLRACE_ON_SM_90A(
      asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                   " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared),
                   "l"(&x), "r"(barrier), "r"(input), "r"(row), "h"(kAllBlocks) : "memory"));
}
/// Raises the registers of this warpgroup's threads once others have given as many; both by all its threads.
template <int kCount>
__device__ void take_registers() {
  MILLRACE_ON_SM_90A(asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount)));
}
template <int kCount>
__device__ void give_registers() {
  MILLRACE_ON_SM_90A(asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount)));
}
/// Waits for the threads of this warpgroup alone.
__device__ inline void warpgroup_barrier() {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.x / 128) : "memory");
}

#endif

}  // namespace millrace::cuda
