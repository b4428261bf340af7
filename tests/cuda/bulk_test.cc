// The emulator's copy engine and clusters do as the PTX ISA says, and notice what a device would not forgive.

#include "cuda/bulk.cuh"
#include "cuda/packed_weight.h"

#include <numeric>

#include "cuda/device_array.h"
#include "cuda/emulator/emulator.h"
#include "support/test_seed.h"

using namespace millrace;
using namespace millrace::test;

namespace {

constexpr int kThreads = 32;
constexpr int32_t kMatrixRows = 11;  // of which 8 per block
constexpr int32_t kInputs = 72;      // of which 64 are copied
constexpr int32_t kShare = 8;
constexpr uint32_t kTileBytes = cuda::kClusterBlocks * kShare * cuda::kStepRowBytes;
constexpr uint32_t kBulkBytes = 256;
constexpr size_t kSharedBytes = kTileBytes + kBulkBytes + 16;

enum class Mistake { kNone, kNoWait, kFewBytes, kNoBarrier, kEndsEarly };

struct Case {
  const uint16_t* plain;  // [blocks, kBulkBytes / 2]
  uint16_t* tiles;        // [blocks, kTileBytes / 2]
  uint16_t* copied;       // as plain
  Mistake mistake;
};

/// Each block of a cluster copies half of a tile to both, and its own part of `plain`.
void copy_in_cluster(Case c, cuda::RowTiles rows) {
  const uint32_t rank = cuda::cluster_rank();
  const uint32_t barrier = kTileBytes + kBulkBytes;
  std::byte* const shared = cuda::shared_memory();
  if (threadIdx.x == 0 && c.mistake != Mistake::kNoBarrier) cuda::init_barrier(barrier, 1);
  cuda::cluster_sync();
  if (threadIdx.x == 0) {
    const uint32_t bytes = kTileBytes + kBulkBytes - (c.mistake == Mistake::kFewBytes ? 16 : 0);
    cuda::arrive_and_expect(barrier, bytes);
    cuda::copy_rows_to_cluster(rank * kShare * cuda::kStepRowBytes, rows, 0, static_cast<int32_t>(rank) * kShare,
                               barrier);
    cuda::copy_bulk(kTileBytes, c.plain + rank * kBulkBytes / 2, kBulkBytes, barrier);
  }
  if (c.mistake == Mistake::kEndsEarly) return;
  if (c.mistake != Mistake::kNoWait) cuda::wait_barrier(barrier, 0);
  for (uint32_t i = threadIdx.x; i < kTileBytes / 2; i += kThreads) {
    c.tiles[rank * kTileBytes / 2 + i] = reinterpret_cast<uint16_t*>(shared)[i];
  }
  for (uint32_t i = threadIdx.x; i < kBulkBytes / 2; i += kThreads) {
    c.copied[rank * kBulkBytes / 2 + i] = reinterpret_cast<uint16_t*>(shared + kTileBytes)[i];
  }
  cuda::cluster_sync();
}

struct Copied {
  std::vector<uint16_t> tiles, plain;
};

Copied run(const std::vector<uint16_t>& matrix, const std::vector<uint16_t>& plain, Mistake mistake) {
  const DeviceArray<uint16_t> device_matrix(matrix);
  const DeviceArray<uint16_t> device_plain(plain);
  const DeviceArray<uint16_t> tiles(size_t{kTileBytes}, 0xFF);
  const DeviceArray<uint16_t> copied(plain.size(), 0xFF);
  cuda::launch_kernel(copy_in_cluster,
                      {.name = "copies",
                       .grid = dim3(cuda::kClusterBlocks),
                       .block = dim3(kThreads),
                       .shared_bytes = kSharedBytes,
                       .cluster_blocks = cuda::kClusterBlocks},
                      nullptr, Case{device_plain.get(), tiles.get(), copied.get(), mistake},
                      cuda::make_row_tiles(device_matrix.get(), kMatrixRows, kInputs, cuda::kStepInputs, kShare));
  return {tiles.values(), copied.values()};
}

std::vector<uint16_t> counting(size_t count, uint16_t first) {
  std::vector<uint16_t> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

}  // namespace

TEST_CASE("the copy engine fills both blocks of a cluster") {
  const auto matrix = counting(size_t{kMatrixRows} * kInputs, 1);
  const auto plain = counting(size_t{cuda::kClusterBlocks} * kBulkBytes / 2, 5000);
  const Copied copied = run(matrix, plain, Mistake::kNone);
  REQUIRE(copied.plain == plain);
  for (size_t block = 0; block < cuda::kClusterBlocks; ++block) {
    for (int32_t row = 0; row < cuda::kClusterBlocks * kShare; ++row) {
      for (int32_t input = 0; input < cuda::kStepInputs; ++input) {
        const auto offset = static_cast<size_t>(cuda::chunk_offset(row, input / 8) / 2 + input % 8);
        const uint16_t wanted = row < kMatrixRows ? matrix[static_cast<size_t>(row * kInputs + input)] : uint16_t{0};
        REQUIRE(copied.tiles[block * kTileBytes / 2 + offset] == wanted);
      }
    }
  }
}

TEST_CASE("the emulator notices what copies do not forgive") {
  const auto matrix = counting(size_t{kMatrixRows} * kInputs, 1);
  const auto plain = counting(size_t{cuda::kClusterBlocks} * kBulkBytes / 2, 5000);
  // Some orders of threads and copies forgive a mistake; of many, one does not.
  const auto notice = [&](Mistake mistake) {
    std::string found = "nothing";
    for (uint64_t seed = 0; seed < 64; ++seed) {
      emulator::set_order_seed(seed);
      try {
        if (run(matrix, plain, mistake).plain != plain) found = "other values";
      } catch (const std::runtime_error& failure) {
        return std::string(failure.what());
      }
    }
    return found;
  };
  CHECK_THAT(notice(Mistake::kNone), Catch::Equals("nothing"));
  CHECK(notice(Mistake::kNoWait) != "nothing");
  CHECK_THAT(notice(Mistake::kFewBytes),
             Catch::Contains("which lacks 0 arrivals and -16 bytes") || Catch::Contains("lacks 1 arrivals and"));
  CHECK_THAT(notice(Mistake::kNoBarrier), Catch::Contains("no barrier was made at"));
  CHECK_THAT(notice(Mistake::kEndsEarly), Catch::Contains("a copy lands after a block of its cluster has ended"));
  emulator::set_order_seed(test_seed());
}
