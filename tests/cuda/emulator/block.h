#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

/// The emulator's state as a running kernel sees it: its thread, warp and block. device.h builds CUDA's names on it.
namespace millrace::emulator {

inline constexpr int kWarpLanes = 32;

/// A copy that was started and not waited for. It takes place at the wait.
struct AsyncCopy {
  void* to = nullptr;
  const void* from = nullptr;
  uint32_t bytes = 0;  ///< of `size`; zeros follow
  uint32_t size = 0;   ///< 4, 8 or 16
};

/// A thread's copies in the order in which they were started.
struct CopyQueue {
  std::vector<AsyncCopy> copies;
  std::vector<size_t> group_ends;  ///< of committed groups, in `copies`
  size_t first_group = 0;          ///< that is not waited for
  size_t first_copy = 0;           ///< of it
  void clear() {
    copies.clear();
    group_ends.clear();
    first_group = first_copy = 0;
  }
};

/// Values that come and go. Their memory stays for the next ones, since threads are many and take short turns.
template <class T>
class Reused {
 public:
  /// Returns a value as its last user has left it.
  T& add() {
    if (count_ == values_.size()) values_.emplace_back();
    return values_[count_++];
  }
  template <class Matches>
  void remove_if(const Matches& matches) {
    for (size_t i = 0; i < count_;) {
      if (matches(values_[i]))
        std::swap(values_[i], values_[--count_]);
      else
        ++i;
    }
  }
  void clear() { count_ = 0; }
  T* begin() { return values_.data(); }
  T* end() { return values_.data() + count_; }

 private:
  std::vector<T> values_;
  size_t count_ = 0;
};

/// The sums of wgmma in a thread's registers. They are NaNs from its start to its wait.
struct OpenSums {
  float* registers = nullptr;
  std::vector<float> values;
  uint64_t group = 0;  ///< the last that adds to them
};
/// The operands of a wgmma in flight. One thread of the warpgroup keeps them.
struct OpenOperands {
  bool a_is_shared = true;  ///< else it is in registers
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
  CopyQueue copies;
  std::vector<size_t> unfenced;  // 16 bytes each of shared memory, that copies have written
  Reused<OpenSums> open_sums;
  Reused<OpenOperands> open_operands;
  uint64_t wgmma_groups = 0;  // committed
  bool wgmma_fenced = false;  // since a wait

  void forget_work() {
    copies.clear();
    unfenced.clear();
    open_sums.clear();
    open_operands.clear();
    wgmma_groups = 0;
    wgmma_fenced = false;
  }
};

/// The inputs of a warp's lanes to a collective, and the addresses of their results.
struct Collective {
  std::array<const void*, kWarpLanes> in{};
  std::array<void*, kWarpLanes> out{};
};

/// The inputs of a warpgroup's threads to a collective, and the addresses of their results.
inline constexpr int kWarpgroupThreads = 128;
struct WarpgroupCollective {
  std::array<const void*, kWarpgroupThreads> in{};
};

/// A matrix of 16-bit elements [rows, inputs] that the copy engine reads in boxes.
struct TiledMatrix {
  const void* data = nullptr;
  int rows = 0;
  int inputs = 0;
  int box_inputs = 0;
  int box_rows = 0;
};

/// A barrier in shared memory at which threads arrive and copies count their bytes.
struct ByteBarrier {
  uint32_t arrivals = 0;        ///< of each phase
  int64_t missing = 0;          ///< arrivals
  int64_t bytes = 0;            ///< that are announced and not there; negative: they came first
  uint32_t parity = 0;          ///< of the phase that goes on
  std::vector<size_t> waiting;  // threads
};

struct Block {
  uint3 index{};
  uint32_t cluster_rank = 0;
  std::map<size_t, ByteBarrier> barriers;  // by offset
  dim3 grid;
  dim3 shape;
  std::byte* shared = nullptr;
  size_t shared_bytes = 0;
  /// Counts, for each 16 bytes of shared memory, the threads that wrote it by a copy without a fence.
  std::vector<uint16_t> unfenced;
};

[[nodiscard]] Thread& current_thread();
[[nodiscard]] Block& current_block();

/// Ends the kernel with a KernelFault that begins with the names of kernel, block and thread.
[[noreturn]] void fault(const std::string& what);

/// A function that its caller keeps.
template <class Argument>
class FunctionView {
 public:
  template <class Function>
  FunctionView(const Function& function)  // NOLINT(google-explicit-constructor): callers pass lambdas
      : object_(&function),
        call_([](const void* object, const Argument& argument) { (*static_cast<const Function*>(object))(argument); }) {
  }
  void operator()(const Argument& argument) const { call_(object_, argument); }

 private:
  const void* object_;
  void (*call_)(const void*, const Argument&);
};

void synchronize_block(const std::source_location& where);
/// Waits for all 32 lanes; the last to arrive runs `combine` over all inputs. All must reach the same operation with
/// the full mask.
void synchronize_warp(const char* operation, uint32_t mask, const void* in, void* out,
                      FunctionView<Collective> combine);

/// Waits likewise for the 128 threads of a warpgroup, which begins at a multiple of 128.
void synchronize_warpgroup(const char* operation, const void* in, FunctionView<WarpgroupCollective> combine);

/// Waits for all threads of the cluster.
void synchronize_cluster();

/// The instructions that bulk.cuh wraps. A copy takes place at a random turn, and counts at its barrier then.
/// Shared memory is named by its offset in the block.
void init_barrier(size_t barrier, uint32_t arrivals);
void arrive(size_t barrier, uint32_t rank);
void arrive_and_expect(size_t barrier, uint32_t bytes);
void wait_barrier(size_t barrier, uint32_t parity);
void copy_bulk(size_t shared, const void* global, uint32_t bytes, size_t barrier);
void copy_tile_to_cluster(size_t shared, const TiledMatrix& matrix, int input, int row, size_t barrier);

/// The cluster of the running block, for these instructions. Every function takes a block's number in the cluster.
[[nodiscard]] uint32_t cluster_blocks();
[[nodiscard]] Block& block_of_cluster(uint32_t rank);
/// Lets the running thread wait until resume_thread.
void suspend_thread();
void resume_thread(uint32_t rank, size_t thread);
/// Runs `land` at a random turn before the cluster ends.
void land_later(std::function<void()> land);

/// The tensor core and memory instructions that mma.cuh wraps, with the register layouts of the PTX ISA.
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
/// Loads four 8×8 matrices of 16-bit elements. Lane i gives the address of row i % 8 of matrix i / 8.
void load_matrix(uint32_t (&registers)[4], const void* row, bool transposed);
/// Starts a copy of `bytes` bytes, and of zeros up to `size`, which is 4, 8 or 16.
void copy_async(void* shared, const void* global, uint32_t bytes, uint32_t size = 16);
void commit_copies();
/// Waits until at most `pending` of this thread's latest groups are outstanding.
void wait_copies(size_t pending);

/// The instructions that wgmma.cuh wraps. Operands are read when a wgmma starts and must be unchanged at its wait.
void fence_async_proxy();
void wgmma_fence();
void wgmma(float* d, int columns, uint64_t a, uint64_t b);
void wgmma_registers(float* d, int columns, const uint32_t (&a)[4], uint64_t b);
void wgmma_e4m3(float* d, int columns, uint64_t a, uint64_t b, bool adds);
void wgmma_commit();
void wgmma_wait(size_t pending);

}  // namespace millrace::emulator
