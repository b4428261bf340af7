// Tensor core and memory instructions, as the PTX ISA describes them.

#include <fmt/core.h>

#include <bit>
#include <cstring>

#include "cuda/emulator/block.h"

namespace millrace::emulator {
namespace {

constexpr uint32_t kFullWarp = 0xFFFFFFFFu;
constexpr uintptr_t kVectorBytes = 16;

float low(uint32_t pair) {
  return std::bit_cast<float>(pair << 16);
}
float high(uint32_t pair) {
  return std::bit_cast<float>(pair & 0xFFFF0000u);
}

struct MmaOperands {
  const uint32_t* a;
  const uint32_t* b;
  const float* c;
};

void check_aligned(const char* operation, const void* address, uintptr_t bytes = kVectorBytes) {
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0) {
    fault(fmt::format("{} of an address that is not a multiple of {}", operation, bytes));
  }
}

void multiply_in_warp(const Collective& lanes) {
  float a[16][16];
  float b[16][8];
  float c[16][8];
  const auto at = [&lanes](size_t lane) { return *static_cast<const MmaOperands*>(lanes.in[lane]); };
  for (size_t lane = 0; lane < kWarpLanes; ++lane) {
    const size_t group = lane / 4;
    const size_t pair = lane % 4 * 2;
    const MmaOperands own = at(lane);
    for (size_t i = 0; i < 4; ++i) {  // a: (g, k), (g + 8, k), (g, k + 8), (g + 8, k + 8)
      a[group + i % 2 * 8][pair + i / 2 * 8] = low(own.a[i]);
      a[group + i % 2 * 8][pair + i / 2 * 8 + 1] = high(own.a[i]);
      c[group + i / 2 * 8][pair + i % 2] = own.c[i];
    }
    for (size_t i = 0; i < 2; ++i) {
      b[pair + i * 8][group] = low(own.b[i]);
      b[pair + i * 8 + 1][group] = high(own.b[i]);
    }
  }
  for (size_t row = 0; row < 16; ++row) {
    for (size_t k = 0; k < 16; ++k) {
      for (size_t column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
    }
  }
  for (size_t lane = 0; lane < kWarpLanes; ++lane) {
    auto* d = static_cast<float*>(lanes.out[lane]);
    for (size_t i = 0; i < 4; ++i) d[i] = c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

template <bool kTransposed>
void gather_matrices(const Collective& lanes) {
  for (size_t lane = 0; lane < kWarpLanes; ++lane) {
    uint32_t registers[4];
    for (size_t matrix = 0; matrix < 4; ++matrix) {
      uint16_t pair[2];
      for (size_t i = 0; i < 2; ++i) {
        const size_t row = kTransposed ? lane % 4 * 2 + i : lane / 4;
        const size_t column = kTransposed ? lane / 4 : lane % 4 * 2 + i;
        std::memcpy(&pair[i], static_cast<const uint16_t*>(lanes.in[matrix * 8 + row]) + column, sizeof(uint16_t));
      }
      registers[matrix] = uint32_t{pair[0]} | uint32_t{pair[1]} << 16;
    }
    std::memcpy(lanes.out[lane], registers, sizeof(registers));
  }
}

void copy(const AsyncCopy& copy) {
  std::memcpy(copy.to, copy.from, copy.bytes);
  std::memset(static_cast<std::byte*>(copy.to) + copy.bytes, 0, copy.size - copy.bytes);
}

/// Notes that a copy has written to 16 bytes of shared memory, which wgmma may not read before its fence.
void note_unfenced(const void* to) {
  Block& block = current_block();
  const auto at = static_cast<size_t>(static_cast<const std::byte*>(to) - block.shared) / kVectorBytes;
  if (at >= block.unfenced.size()) return;  // a fault of its own
  ++block.unfenced[at];
  current_thread().unfenced.push_back(at);
}

}  // namespace

void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const float c[4] = {d[0], d[1], d[2], d[3]};
  const MmaOperands operands{a, b, c};
  synchronize_warp("mma", kFullWarp, &operands, d, [](const Collective& lanes) { multiply_in_warp(lanes); });
}

void load_matrix(uint32_t (&registers)[4], const void* row, bool transposed) {
  check_aligned("ldmatrix", row);
  synchronize_warp(transposed ? "ldmatrix.trans" : "ldmatrix", kFullWarp, row, registers,
                   [transposed](const Collective& lanes) {
                     if (transposed)
                       gather_matrices<true>(lanes);
                     else
                       gather_matrices<false>(lanes);
                   });
}

void copy_async(void* shared, const void* global, uint32_t bytes, uint32_t size) {
  check_aligned("cp.async", shared, size);
  check_aligned("cp.async", global, size);
  if (bytes > size) fault(fmt::format("cp.async of {} bytes", bytes));
  // Until the wait nobody may count on what was there or on what will be: both are NaNs.
  std::memset(shared, 0xFF, size);
  current_thread().copies.copies.push_back({.to = shared, .from = global, .bytes = bytes, .size = size});
}

void commit_copies() {
  CopyQueue& queue = current_thread().copies;
  queue.group_ends.push_back(queue.copies.size());
}

void wait_copies(size_t pending) {
  CopyQueue& queue = current_thread().copies;
  while (queue.group_ends.size() - queue.first_group > pending) {
    for (const size_t end = queue.group_ends[queue.first_group++]; queue.first_copy < end; ++queue.first_copy) {
      copy(queue.copies[queue.first_copy]);
      note_unfenced(queue.copies[queue.first_copy].to);
    }
  }
  if (queue.first_copy == queue.copies.size() && queue.first_group == queue.group_ends.size()) queue.clear();
}

}  // namespace millrace::emulator
