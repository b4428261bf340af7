#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <vector>

/// What a running kernel sees of the emulator: its thread, its warp, its block. device.h builds CUDA's names on it.
namespace millrace::emulator {

inline constexpr int kWarpLanes = 32;

/// A copy that was asked for and has not been waited for; it takes place at the wait.
struct AsyncCopy {
  void* to = nullptr;
  const void* from = nullptr;
  uint32_t bytes = 0;  ///< of 16; zeros follow
};

/// What wgmma adds up in a thread's registers. They are NaNs there from its begin to its wait.
struct OpenSums {
  float* registers = nullptr;
  std::vector<float> values;
  uint64_t group = 0;  ///< the last that adds to them
};
/// What a wgmma under way reads. One thread of the warpgroup keeps it.
struct OpenOperands {
  uint64_t a = 0;
  uint64_t b = 0;
  int columns = 0;
  std::vector<uint16_t> values;
  uint64_t group = 0;
};

struct Thread {
  uint3 index{};
  int lane = 0;
  int warp = 0;
  std::vector<std::vector<AsyncCopy>> copies;  // committed groups, oldest first
  std::vector<AsyncCopy> open_copies;          // not committed yet
  std::vector<size_t> unfenced;                // 16 bytes each of shared memory, that copies have written
  std::vector<OpenSums> open_sums;
  std::vector<OpenOperands> open_operands;
  uint64_t wgmma_groups = 0;  // committed
  bool wgmma_fenced = false;  // since a wait
};

/// What the lanes of a warp bring to a collective, and where each wants its result.
struct Collective {
  std::array<const void*, kWarpLanes> in{};
  std::array<void*, kWarpLanes> out{};
};

/// The same of a warpgroup.
inline constexpr int kWarpgroupThreads = 128;
struct WarpgroupCollective {
  std::array<const void*, kWarpgroupThreads> in{};
};

struct Block {
  uint3 index{};
  dim3 grid;
  dim3 shape;
  std::byte* shared = nullptr;
  size_t shared_bytes = 0;
  /// For each 16 bytes of shared memory, how many threads have written it by a copy that they have not fenced.
  std::vector<uint16_t> unfenced;
};

[[nodiscard]] Thread& current_thread();
[[nodiscard]] Block& current_block();

/// Ends the kernel with a KernelFault that begins with the kernel's, the block's and the thread's names.
[[noreturn]] void fault(const std::string& what);

void synchronize_block(const std::source_location& where);
/// Waits for all 32 lanes; the last to come runs `combine` over what all have brought. All must come to the same
/// operation, with the full mask.
void synchronize_warp(const char* operation, uint32_t mask, const void* in, void* out,
                      const std::function<void(const Collective&)>& combine);

/// The same for the 128 threads of a warpgroup, which begins at a multiple of 128.
void synchronize_warpgroup(const char* operation, const void* in,
                           const std::function<void(const WarpgroupCollective&)>& combine);

/// The tensor core and memory instructions that mma.cuh wraps; register layouts as the PTX ISA gives them.
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
/// Four 8×8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
void load_matrix(uint32_t (&registers)[4], const void* row, bool transposed);
void copy_async(void* shared, const void* global, uint32_t bytes);
void commit_copies();
/// Waits until at most `pending` of this thread's latest groups have not taken place.
void wait_copies(size_t pending);

/// What wgmma.cuh wraps. Operands are read when a wgmma begins, and must be the same when it has been waited for.
void fence_async_proxy();
void wgmma_fence();
void wgmma(float* d, int columns, uint64_t a, uint64_t b);
void wgmma_commit();
void wgmma_wait(size_t pending);

}  // namespace millrace::emulator
