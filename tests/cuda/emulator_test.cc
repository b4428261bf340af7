// The emulator does what a device does, and notices what a device would not forgive.

#include "cuda/mma.cuh"

#include "cuda/device_array.h"

using namespace millrace;
using namespace millrace::test;

namespace {

void run(void (*kernel)(int*), int threads, size_t shared_bytes, int* out) {
  cuda::launch_kernel(kernel, {"probe", dim3(2), dim3(static_cast<uint32_t>(threads)), shared_bytes}, nullptr, out);
}

void reverse_block(int* out) {
  auto* shared = reinterpret_cast<int*>(cuda::shared_memory());
  const auto own = static_cast<int>(threadIdx.x);
  const auto last = static_cast<int>(blockDim.x) - 1;
  shared[own] = own;
  __syncthreads();
  out[static_cast<int>(blockIdx.x * blockDim.x) + own] = shared[last - own];
}

void shuffle_lanes(int* out) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const int turned = __shfl_sync(cuda::kAllLanes, lane, lane + 1);
  const int crossed = __shfl_xor_sync(cuda::kAllLanes, lane, 5);
  const int raised = __shfl_up_sync(cuda::kAllLanes, lane, 3);
  const bool right = turned == (lane + 1) % 32 && crossed == (lane ^ 5) && raised == (lane < 3 ? lane : lane - 3) &&
                     __ballot_sync(cuda::kAllLanes, lane % 3 == 0) == 0x49249249u;
  if (!right) atomicAdd(out, 1);
}

void half_a_barrier(int*) {
  if (threadIdx.x < 32) __syncthreads();
}

void two_barriers(int*) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

void half_a_warp(int* out) {
  if (threadIdx.x % 32 < 16) *out = __shfl_xor_sync(cuda::kAllLanes, 1, 1);
}

void mixed_collectives(int* out) {
  if (threadIdx.x % 32 < 16) {
    *out = __shfl_xor_sync(cuda::kAllLanes, 1, 1);
  } else {
    __syncwarp();
  }
}

void partial_mask(int* out) {
  *out = __shfl_xor_sync(0xFFFFu, 1, 1);
}

/// Reads a neighbour's word without a barrier: the result depends on the order of turns.
void race(int* out) {
  auto* shared = reinterpret_cast<int*>(cuda::shared_memory());
  shared[threadIdx.x] = 7;
  __syncwarp();
  if (shared[(threadIdx.x + 32) % blockDim.x] != 7) atomicAdd(out, 1);
}

/// Reads a copy before its wait.
void early_read(int* out) {
  auto* shared = reinterpret_cast<int*>(cuda::shared_memory());
  cuda::copy_async(shared + threadIdx.x * 4, out + 4, 16);
  cuda::commit_copies();
  if (shared[threadIdx.x * 4] == 5) atomicAdd(out, 1);
  cuda::wait_copies<0>();
  if (shared[threadIdx.x * 4] != 5) atomicAdd(out + 1, 1);
}

void misaligned_copy(int* out) {
  cuda::copy_async(cuda::shared_memory(), out + 1, 16);
}

struct Fragments {
  const uint16_t* a;  // [16, 16]
  const uint16_t* b;  // [8, 16]: column by column
  float* d;           // [16, 8]
};

/// Multiplies through ldmatrix, for the A side and the B side.
void multiply_fragments(Fragments f) {
  auto* shared = reinterpret_cast<uint16_t*>(cuda::shared_memory());
  const auto lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) shared[i] = f.a[i];
  for (int i = lane; i < 128; i += 32) shared[256 + i] = f.b[i];
  __syncwarp();
  uint32_t a[4];
  uint32_t b[4];
  cuda::load_matrix(a, shared + (lane % 8 + lane / 8 % 2 * 8) * 16 + lane / 16 * 8);
  cuda::load_matrix(b, shared + 256 + lane % 8 * 16 + lane / 8 % 2 * 8);
  float d[4] = {};
  const uint32_t pair[2] = {b[0], b[1]};
  cuda::mma(d, a, pair);
  for (int i = 0; i < 4; ++i) f.d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

}  // namespace

TEST_CASE("blocks and warps of the emulator exchange like on CUDA") {
  const DeviceArray<int> reversed(192);
  run(reverse_block, 96, 96 * sizeof(int), reversed.get());
  for (int i = 0; i < 192; ++i) REQUIRE(reversed.get()[i] == 95 - i % 96);
  const DeviceArray<int> wrong(1);
  run(shuffle_lanes, 64, 0, wrong.get());
  REQUIRE(wrong.get()[0] == 0);
}

TEST_CASE("mma and ldmatrix multiply matrices") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 120);
  const Values a = rounded_bf16(random.normal(256));
  const Values b = rounded_bf16(random.normal(128));
  const DeviceArray<uint16_t> device_a(bf16_bits(a));
  const DeviceArray<uint16_t> device_b(bf16_bits(b));
  const DeviceArray<float> d(128, 0xFF);
  cuda::launch_kernel(multiply_fragments, {"multiply", dim3(1), dim3(32), 768}, nullptr,
                      Fragments{device_a.get(), device_b.get(), d.get()});
  check_close(d.values(), reference::matmul(a, b, {}, 16, 8), 1e-6, 1e-5);
}

TEST_CASE("the emulator notices threads that diverge at barriers") {
  const DeviceArray<int> out(8);
  using Catch::Contains;
  REQUIRE_THROWS_WITH(run(half_a_barrier, 64, 0, out.get()), Contains("probe, block") && Contains("__syncthreads"));
  REQUIRE_THROWS_WITH(run(two_barriers, 64, 0, out.get()), Contains("while others wait at emulator_test.cc"));
  REQUIRE_THROWS_WITH(run(half_a_warp, 32, 0, out.get()), Contains("lanes 0xffff of warp 0 at __shfl_xor_sync"));
  REQUIRE_THROWS_WITH(run(mixed_collectives, 32, 0, out.get()), Contains("while lanes"));
  REQUIRE_THROWS_WITH(run(partial_mask, 32, 0, out.get()), Contains("with the mask 0xffff, wanted all lanes"));
  REQUIRE_THROWS_WITH(run(reverse_block, 40, 160, out.get()), Contains("40 threads per block"));
}

TEST_CASE("the emulator notices launches beyond the device limits") {
  const auto launch = [](const dim3& grid, size_t shared_bytes) {
    const DeviceArray<int> out(1);
    cuda::launch_kernel(shuffle_lanes, {"probe", grid, dim3(32), shared_bytes}, nullptr, out.get());
  };
  launch(dim3(1), 227 << 10);
  REQUIRE_THROWS_WITH(launch(dim3(1), (227 << 10) + 1), "probe: 232449 bytes of shared memory, wanted at most 232448");
  REQUIRE_THROWS_WITH(launch(dim3(1, 65536), 0), Catch::Contains("probe: a grid of (1, 65536, 1), wanted at most"));
  REQUIRE_THROWS_WITH(launch(dim3(1, 1, 65536), 0), Catch::Contains("probe: a grid of (1, 1, 65536), wanted at most"));
}

TEST_CASE("the emulator shows what barriers and waits are for") {
  const DeviceArray<int> races(1);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    emulator::set_order_seed(seed);
    run(race, 64, 64 * sizeof(int), races.get());
  }
  REQUIRE(races.get()[0] > 0);
  const DeviceArray<int> counts(std::vector<int>{0, 0, 0, 0, 5, 5, 5, 5});
  run(early_read, 32, 512, counts.get());
  REQUIRE(counts.get()[0] == 0);
  REQUIRE(counts.get()[1] == 0);
  REQUIRE_THROWS_WITH(run(misaligned_copy, 32, 512, counts.get()), Catch::Contains("not a multiple of 16"));
}
