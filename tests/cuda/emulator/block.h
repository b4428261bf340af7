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

struct Thread {
  uint3 index{};
  int lane = 0;
  int warp = 0;
  std::vector<std::vector<AsyncCopy>> copies;  // committed groups, oldest first
  std::vector<AsyncCopy> open_copies;          // not committed yet
};

/// What the lanes of a warp bring to a collective, and where each wants its result.
struct Collective {
  std::array<const void*, kWarpLanes> in{};
  std::array<void*, kWarpLanes> out{};
};

struct Block {
  uint3 index{};
  dim3 grid;
  dim3 shape;
  std::byte* shared = nullptr;
  size_t shared_bytes = 0;
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

/// The tensor core and memory instructions that mma.cuh wraps; register layouts as the PTX ISA gives them.
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
/// Four 8×8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
void load_matrix(uint32_t (&registers)[4], const void* row, bool transposed);
void copy_async(void* shared, const void* global, uint32_t bytes);
void commit_copies();
/// Waits until at most `pending` of this thread's latest groups have not taken place.
void wait_copies(size_t pending);

}  // namespace millrace::emulator
