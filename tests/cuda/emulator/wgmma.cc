// Products by a warpgroup, as the PTX ISA describes them for sm_90a: operands in shared memory, in rows of 64 bf16 with
// the 128-byte swizzle.

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "cuda/emulator/block.h"

namespace millrace::emulator {
namespace {

constexpr size_t kRows = 64;
constexpr size_t kInputs = 16;
constexpr size_t kOperandChunkBytes = 16;
constexpr size_t kChunkInputs = 8;
constexpr size_t kRowBytes = 128;
constexpr size_t kMaxColumns = 256;
constexpr size_t kMaxTerms = 2 * kInputs;  // of E4M3, two in each element
constexpr uint64_t kSwizzle128 = 1;

struct Operands {
  Thread* thread;
  float* d;
  int columns;
  uint64_t a;
  uint64_t b;
  bool is_e4m3 = false;
  bool adds = true;
  const uint32_t* registers = nullptr;  // of `a`, of this thread; null: it is in shared memory
};

uint64_t field(uint64_t descriptor, int shift) {
  return descriptor >> shift & 0x3FFF;
}

/// Reads the operand of a descriptor, row by row, 16 inputs each.
void read_operand(uint64_t descriptor, size_t rows, bool must_be_fenced, uint16_t* values) {
  const Block& block = current_block();
  if (descriptor >> 62 != kSwizzle128) fault("wgmma: an operand without the 128-byte swizzle");
  if ((descriptor >> 49 & 7) != 0) fault("wgmma: an operand whose rows begin inside of a group of eight");
  const size_t start = field(descriptor, 0) << 4;
  const size_t group_distance = field(descriptor, 32) << 4;
  for (size_t row = 0; row < rows; ++row) {
    for (size_t half = 0; half < 2; ++half) {
      const size_t plain = start + row / 8 * group_distance + row % 8 * kRowBytes + half * kOperandChunkBytes;
      const size_t at = plain ^ ((plain / kRowBytes & 7) * kOperandChunkBytes);
      if (at + kOperandChunkBytes > block.shared_bytes) {
        fault(fmt::format("wgmma: an operand at {} of {} bytes of shared memory", at, block.shared_bytes));
      }
      if (must_be_fenced && block.unfenced[at / kOperandChunkBytes] != 0) {
        fault(fmt::format("wgmma: reads at {} what a copy has written, without fence.proxy.async between", at));
      }
      std::memcpy(values + row * kInputs + half * kChunkInputs, block.shared + at, kOperandChunkBytes);
    }
  }
}

/// Returns the number of a code of E4M3.
float e4m3_number(uint32_t code) {
  const uint32_t magnitude = code & 0x7F;
  float number = std::bit_cast<float>(magnitude << 20) * 0x1p120f;
  if (magnitude == 0x7F) number = std::numeric_limits<float>::quiet_NaN();
  return code > 0x7F ? -number : number;
}

/// Operands as numbers, and their sums. One for each host thread, since fibers' stacks are small.
struct Product {
  float a[kRows][kMaxTerms];
  float b[kMaxTerms][kMaxColumns];  // transposed
  float sums[kRows][kMaxColumns];
};

/// Reads an element of an operand: a number in bf16, or two codes, the first in the lower half.
void read_terms(uint16_t element, bool is_e4m3, float* terms, size_t distance) {
  if (is_e4m3) {
    terms[0] = e4m3_number(element & 255u);
    terms[distance] = e4m3_number(element >> 8u);
  } else {
    terms[0] = std::bit_cast<float>(uint32_t{element} << 16);
  }
}

/// Adds the products to the sums one by one, in the order of inputs.
void add_products(Product& product, size_t columns, size_t terms) {
  for (size_t row = 0; row < kRows; ++row) {
    float* const sums = product.sums[row];
    for (size_t k = 0; k < terms; ++k) {
      const float factor = product.a[row][k];
      const float* const others = product.b[k];
      for (size_t column = 0; column < columns; ++column) sums[column] += factor * others[column];
    }
  }
}

/// Returns the sums in flight in these registers, or starts new ones from their values.
OpenSums& open_sums(const Operands& own) {
  Reused<OpenSums>& all = own.thread->open_sums;
  const auto found = std::find_if(all.begin(), all.end(), [&](const OpenSums& one) { return one.registers == own.d; });
  const size_t count = static_cast<size_t>(own.columns) / 2;
  if (found != all.end()) {
    if (found->values.size() != count) fault("wgmma: sums of another width are under way");
    return *found;
  }
  if (!own.thread->wgmma_fenced) fault("wgmma: its registers were free for others, without wgmma.fence since");
  OpenSums& added = all.add();
  added.registers = own.d;
  added.values.assign(own.d, own.d + count);
  // Until the wait nobody may count on what was there or on what will be.
  std::fill(own.d, own.d + count, std::numeric_limits<float>::quiet_NaN());
  return added;
}

/// Reads an operand from the registers of all threads: as mma has it, of warp w for the rows 16w….
void read_registers(const WarpgroupCollective& threads, uint16_t* values) {
  for (size_t i = 0; i < kWarpgroupThreads; ++i) {
    const uint32_t* const own = static_cast<const Operands*>(threads.in[i])->registers;
    const size_t lane = i % kWarpLanes;
    for (size_t r = 0; r < 4; ++r) {  // (g, c), (g + 8, c), (g, c + 8), (g + 8, c + 8)
      const size_t row = i / kWarpLanes * 16 + lane / 4 + r % 2 * 8;
      const size_t input = lane % 4 * 2 + r / 2 * 8;
      values[row * kInputs + input] = static_cast<uint16_t>(own[r]);
      values[row * kInputs + input + 1] = static_cast<uint16_t>(own[r] >> 16);
    }
  }
}

/// Calls use(sum of the thread, its row, its column): of each 8 columns (g, c), (g, c + 1), (g + 8, c), (g + 8, c + 1).
template <class Use>
void for_sums(size_t thread, size_t count, const Use& use) {
  const size_t lane = thread % kWarpLanes;
  for (size_t s = 0; s < count; ++s)
    use(s, thread / kWarpLanes * 16 + lane / 4 + s % 4 / 2 * 8, s / 4 * 8 + lane % 4 * 2 + s % 2);
}

void multiply_in_warpgroup(const WarpgroupCollective& threads) {
  const auto at = [&](size_t i) { return *static_cast<const Operands*>(threads.in[i]); };
  const Operands first = at(0);
  const auto columns = static_cast<size_t>(first.columns);
  for (size_t i = 0; i < kWarpgroupThreads; ++i) {
    const Operands own = at(i);
    if (own.a != first.a || own.b != first.b || own.columns != first.columns || own.adds != first.adds ||
        (own.registers == nullptr) != (first.registers == nullptr)) {
      fault("wgmma: the threads of a warpgroup name different operands");
    }
  }
  const bool a_is_shared = first.registers == nullptr;
  OpenOperands& kept = first.thread->open_operands.add();
  kept.a_is_shared = a_is_shared;
  kept.a = first.a;
  kept.b = first.b;
  kept.columns = first.columns;
  kept.group = first.thread->wgmma_groups;
  kept.values.resize((kRows + columns) * kInputs);
  uint16_t* const a = kept.values.data();
  uint16_t* const b = a + kRows * kInputs;
  if (a_is_shared) {
    read_operand(first.a, kRows, true, a);
  } else {
    read_registers(threads, a);
  }
  read_operand(first.b, columns, true, b);

  thread_local const auto product = std::make_unique<Product>();
  const size_t per_element = first.is_e4m3 ? 2 : 1;
  for (size_t i = 0; i < kRows * kInputs; ++i)
    read_terms(a[i], first.is_e4m3, &product->a[i / kInputs][i % kInputs * per_element], 1);
  for (size_t i = 0; i < columns * kInputs; ++i)
    read_terms(b[i], first.is_e4m3, &product->b[i % kInputs * per_element][i / kInputs], kMaxColumns);
  for (size_t i = 0; i < kWarpgroupThreads; ++i) {
    OpenSums& sums = open_sums(at(i));
    sums.group = at(i).thread->wgmma_groups;
    for_sums(i, sums.values.size(), [&](size_t s, size_t row, size_t column) {
      product->sums[row][column] = first.adds ? sums.values[s] : 0.0f;
    });
  }
  add_products(*product, columns, kInputs * per_element);
  for (size_t i = 0; i < kWarpgroupThreads; ++i) {
    OpenSums& sums = open_sums(at(i));
    for_sums(i, sums.values.size(),
             [&](size_t s, size_t row, size_t column) { sums.values[s] = product->sums[row][column]; });
  }
}

void check_unchanged(const OpenOperands& read) {
  thread_local std::vector<uint16_t> now;
  now.resize(read.values.size());
  uint16_t* const b = now.data() + kRows * kInputs;
  if (read.a_is_shared) {
    read_operand(read.a, kRows, false, now.data());
  } else {
    std::copy_n(read.values.begin(), kRows * kInputs, now.begin());
  }
  read_operand(read.b, static_cast<size_t>(read.columns), false, b);
  if (now != read.values) fault("wgmma: what it reads has changed before its wait");
}

void multiply(const Operands& operands) {
  const int columns = operands.columns;
  if (columns % 8 != 0 || columns < 8 || columns > int{kMaxColumns}) fault(fmt::format("wgmma of {} columns", columns));
  synchronize_warpgroup("wgmma", &operands, [](const WarpgroupCollective& threads) { multiply_in_warpgroup(threads); });
}

}  // namespace

void fence_async_proxy() {
  Block& block = current_block();
  for (const size_t at : current_thread().unfenced) --block.unfenced[at];
  current_thread().unfenced.clear();
}

void wgmma_fence() {
  current_thread().wgmma_fenced = true;
}

void wgmma(float* d, int columns, uint64_t a, uint64_t b) {
  multiply({.thread = &current_thread(), .d = d, .columns = columns, .a = a, .b = b});
}

void wgmma_registers(float* d, int columns, const uint32_t (&a)[4], uint64_t b) {
  // Registers are read at once, since the compiler keeps them until the wait.
  multiply({.thread = &current_thread(), .d = d, .columns = columns, .a = 0, .b = b, .registers = a});
}

void wgmma_e4m3(float* d, int columns, uint64_t a, uint64_t b, bool adds) {
  multiply({.thread = &current_thread(), .d = d, .columns = columns, .a = a, .b = b, .is_e4m3 = true, .adds = adds});
}

void wgmma_commit() {
  ++current_thread().wgmma_groups;
}

void wgmma_wait(size_t pending) {
  Thread& thread = current_thread();
  const auto is_complete = [&](uint64_t group) { return group + pending < thread.wgmma_groups; };
  thread.open_operands.remove_if([&](const OpenOperands& read) {
    if (!is_complete(read.group)) return false;
    check_unchanged(read);
    return true;
  });
  thread.open_sums.remove_if([&](const OpenSums& sums) {
    if (!is_complete(sums.group)) return false;
    std::copy(sums.values.begin(), sums.values.end(), sums.registers);
    return true;
  });
  thread.wgmma_fenced = false;
  // The lanes of a warp wait together: what one does next, it does after the others' wait.
  synchronize_warp("wgmma.wait_group", 0xFFFFFFFFu, nullptr, nullptr, [](const Collective&) {});
}

}  // namespace millrace::emulator
