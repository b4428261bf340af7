// The emulator's wgmma multiplies as the PTX ISA says, and notices what a device would not forgive.

#include "cuda/wgmma.cuh"

#include "cuda/device_array.h"

using namespace millrace;
using namespace millrace::test;

namespace {

constexpr int kColumns = 32;
constexpr int kThreads = 128;
constexpr size_t kSharedBytes = (64 + kColumns) * cuda::kStepRowBytes;

enum class Mistake { kNone, kNoAsyncFence, kNoFence, kEarlyRead, kOverwrite, kTouch, kPlainRows, kHalf };

struct Case {
  const uint16_t* a;  // [64, 64], as packed
  const uint16_t* b;  // [kColumns, 64], likewise
  float* d;           // [64, kColumns]
  Mistake mistake;
};

/// Computes d = a · bᵀ in two groups of 32 inputs each.
void multiply_swizzled(Case c) {
  std::byte* const shared = cuda::shared_memory();
  const auto thread = static_cast<int>(threadIdx.x);
  const auto copy = [&](const void* from, int bytes, std::byte* to) {
    for (int at = thread * 16; at < bytes; at += kThreads * 16) {
      cuda::copy_async(to + at, static_cast<const std::byte*>(from) + at, 16);
    }
  };
  std::byte* const columns = shared + 64 * cuda::kStepRowBytes;
  copy(c.a, 64 * cuda::kStepRowBytes, shared);
  copy(c.b, kColumns * cuda::kStepRowBytes, columns);
  cuda::commit_copies();
  cuda::wait_copies<0>();
  if (c.mistake != Mistake::kNoAsyncFence) cuda::fence_async_proxy();
  __syncthreads();
  float sums[kColumns / 8][4] = {};
  if (c.mistake != Mistake::kNoFence) cuda::wgmma_fence();
  if (c.mistake == Mistake::kHalf && thread >= 64) return;
  const uint64_t plain = c.mistake == Mistake::kPlainRows ? uint64_t{3} << 62 : 0;
  for (int inputs = 0; inputs < 64; inputs += 16) {
    const auto operand = [&](const std::byte* rows) {
      return cuda::swizzled_operand(cuda::shared_address(rows) + static_cast<uint32_t>(inputs) * 2) ^ plain;
    };
    cuda::wgmma<kColumns>(sums, operand(shared), operand(columns));
    if (inputs % 32 == 16) cuda::wgmma_commit();
  }
  if (c.mistake == Mistake::kTouch) {
    // The sums of the first group are still the device's while the second is under way.
    cuda::wgmma_wait<1>();
    sums[0][0] = 0.0f;
  }
  if (c.mistake == Mistake::kOverwrite && thread == 0) shared[700] ^= std::byte{1};
  if (c.mistake != Mistake::kEarlyRead) cuda::wgmma_wait<0>();
  for (int i = 0; i < kColumns / 2; ++i) {
    const int row = thread / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8;
    c.d[row * kColumns + i / 4 * 8 + thread % 4 * 2 + i % 2] = sums[i / 4][i % 4];
  }
}

DeviceArray<uint16_t> packed(const Values& rows) {
  DeviceArray<uint16_t> to(rows.size());
  const DeviceArray<uint16_t> from(bf16_bits(rows));
  for (int32_t row = 0; row < static_cast<int32_t>(rows.size()) / 64; ++row) {
    for (int32_t chunk = 0; chunk < 8; ++chunk) {
      std::memcpy(reinterpret_cast<std::byte*>(to.get()) + cuda::chunk_offset(row, chunk),
                  from.get() + row * 64 + chunk * 8, 16);
    }
  }
  return to;
}

Values multiplied(const Values& a, const Values& b, Mistake mistake) {
  const auto device_a = packed(a);
  const auto device_b = packed(b);
  const DeviceArray<float> d(size_t{64} * kColumns, 0xFF);
  cuda::launch_kernel(multiply_swizzled, {"wgmma", dim3(1), dim3(kThreads), kSharedBytes}, nullptr,
                      Case{device_a.get(), device_b.get(), d.get(), mistake});
  return d.values();
}

}  // namespace

TEST_CASE("wgmma multiplies shared memory and unawaited results are NaN") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 121);
  const Values a = rounded_bf16(random.normal(int64_t{64} * 64));
  const Values b = rounded_bf16(random.normal(int64_t{kColumns} * 64));
  const Values wanted = reference::matmul(a, b, {}, 64, kColumns);
  emulator::set_order_seed(static_cast<uint64_t>(random.integer(1, 1 << 30)));
  check_close(multiplied(a, b, Mistake::kNone), wanted, 1e-6, 1e-4);
  const Values early = multiplied(a, b, Mistake::kEarlyRead);
  REQUIRE(std::ranges::all_of(early, [](float value) { return std::isnan(value); }));
  // What is written to registers that are the device's is lost.
  check_close(multiplied(a, b, Mistake::kTouch), wanted, 1e-6, 1e-4);
}

TEST_CASE("the emulator notices what wgmma does not forgive") {
  const Values a(size_t{64} * 64, 1.0f);
  const Values b(size_t{kColumns} * 64, 1.0f);
  const auto [mistake, fault] = GENERATE(table<Mistake, std::string>(
      {{Mistake::kNoAsyncFence, "what a copy has written, without fence.proxy.async between"},
       {Mistake::kNoFence, "without wgmma.fence since"},
       {Mistake::kOverwrite, "what it reads has changed before its wait"},
       {Mistake::kPlainRows, "an operand without the 128-byte swizzle"},
       {Mistake::kHalf, "64 threads of warpgroup 0 at wgmma"}}));
  REQUIRE_THROWS_WITH(multiplied(a, b, mistake), Catch::Contains(fault));
}
