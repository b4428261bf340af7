// The copy engine and its barriers, as the PTX ISA describes them for sm_90.

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cuda/emulator/block.h"

namespace millrace::emulator {
namespace {

constexpr size_t kBulkBytes = 16;
constexpr size_t kBoxRowBytes = 128;
constexpr size_t kSwizzledRows = 8;
constexpr size_t kSwizzleBytes = kBoxRowBytes * kSwizzledRows;
constexpr size_t kMaxBox = 256;
constexpr int kUnwrittenByte = 0xFF;  // NaNs

ByteBarrier& barrier_at(uint32_t rank, size_t offset) {
  Block& block = block_of_cluster(rank);
  const auto found = block.barriers.find(offset);
  if (found == block.barriers.end()) fault(fmt::format("no barrier was made at {}", offset));
  return found->second;
}

void count(uint32_t rank, size_t offset, int64_t arrivals, int64_t bytes) {
  ByteBarrier& barrier = barrier_at(rank, offset);
  barrier.missing -= arrivals;
  barrier.bytes += bytes;
  if (barrier.missing < 0) fault(fmt::format("more than {} arrive at the barrier at {}", barrier.arrivals, offset));
  if (barrier.missing > 0 || barrier.bytes != 0) return;
  barrier.missing = barrier.arrivals;
  barrier.parity ^= 1;
  for (const size_t thread : std::exchange(barrier.waiting, {})) resume_thread(rank, thread);
}

size_t thread_number() {
  const Block& block = current_block();
  const uint3 index = current_thread().index;
  return (size_t{index.z} * block.shape.y + index.y) * block.shape.x + index.x;
}

void check_room(const char* operation, const Block& block, size_t at, size_t bytes) {
  if (at % kBulkBytes == 0 && at + bytes <= block.shared_bytes) return;
  fault(fmt::format("{}: {} bytes at {} of {} bytes of shared memory", operation, bytes, at, block.shared_bytes));
}

/// Writes a box with the 128-byte swizzle; what is outside of the matrix becomes zeros.
void write_box(Block& block, size_t at, const TiledMatrix& matrix, int input, int row) {
  const auto* const data = static_cast<const uint16_t*>(matrix.data);
  for (int r = 0; r < matrix.box_rows; ++r) {
    for (int i = 0; i < matrix.box_inputs; ++i) {
      const bool known = row + r < matrix.rows && input + i < matrix.inputs;
      const size_t from =
          static_cast<size_t>(row + r) * static_cast<size_t>(matrix.inputs) + static_cast<size_t>(input + i);
      const uint16_t value = known ? data[from] : uint16_t{0};
      const size_t plain = at + static_cast<size_t>(r) * kBoxRowBytes + static_cast<size_t>(i) * sizeof(uint16_t);
      const size_t swizzled = plain ^ ((plain / kBoxRowBytes % kSwizzledRows) * kBulkBytes);
      std::memcpy(block.shared + swizzled, &value, sizeof(value));
    }
  }
}

}  // namespace

void init_barrier(size_t barrier, uint32_t arrivals) {
  Block& block = current_block();
  if (barrier % sizeof(uint64_t) != 0 || barrier + sizeof(uint64_t) > block.shared_bytes) {
    fault(fmt::format("mbarrier.init at {} of {} bytes of shared memory", barrier, block.shared_bytes));
  }
  block.barriers[barrier] = {.arrivals = arrivals, .missing = arrivals, .bytes = 0, .parity = 0, .waiting = {}};
}

void arrive(size_t barrier, uint32_t rank) {
  count(rank, barrier, 1, 0);
}

void arrive_and_expect(size_t barrier, uint32_t bytes) {
  count(current_block().cluster_rank, barrier, 1, bytes);
}

void wait_barrier(size_t barrier, uint32_t parity) {
  const uint32_t rank = current_block().cluster_rank;
  while (barrier_at(rank, barrier).parity == parity) {
    barrier_at(rank, barrier).waiting.push_back(thread_number());
    suspend_thread();
  }
}

void copy_bulk(size_t shared, const void* global, uint32_t bytes, size_t barrier) {
  Block& block = current_block();
  check_room("cp.async.bulk", block, shared, bytes);
  if (bytes % kBulkBytes != 0 || reinterpret_cast<uintptr_t>(global) % kBulkBytes != 0) {
    fault(fmt::format("cp.async.bulk of {} bytes from {}, wanted multiples of 16", bytes, global));
  }
  std::memset(block.shared + shared, kUnwrittenByte, bytes);
  land_later([&block, shared, global, bytes, barrier] {
    std::memcpy(block.shared + shared, global, bytes);
    count(block.cluster_rank, barrier, 0, -int64_t{bytes});
  });
}

void copy_tile_to_cluster(size_t shared, const TiledMatrix& matrix, int input, int row, size_t barrier) {
  const size_t bytes = static_cast<size_t>(matrix.box_rows) * kBoxRowBytes;
  const auto bytes_of = [](int elements) { return static_cast<size_t>(elements) * sizeof(uint16_t); };
  if (bytes_of(matrix.box_inputs) != kBoxRowBytes || matrix.box_rows > int{kMaxBox} || shared % kSwizzleBytes != 0 ||
      bytes_of(matrix.inputs) % kBulkBytes != 0 || reinterpret_cast<uintptr_t>(matrix.data) % kBulkBytes != 0) {
    fault(fmt::format("cp.async.bulk.tensor of {} rows of {} inputs to {}, from rows of {} inputs", matrix.box_rows,
                      matrix.box_inputs, shared, matrix.inputs));
  }
  for (uint32_t rank = 0; rank < cluster_blocks(); ++rank) {
    Block& block = block_of_cluster(rank);
    check_room("cp.async.bulk.tensor", block, shared, bytes);
    std::memset(block.shared + shared, kUnwrittenByte, bytes);
    land_later([&block, rank, shared, matrix, input, row, bytes, barrier] {
      write_box(block, shared, matrix, input, row);
      count(rank, barrier, 0, -static_cast<int64_t>(bytes));
    });
  }
}

}  // namespace millrace::emulator
