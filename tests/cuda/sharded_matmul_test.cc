// GEMMs whose sums consist of shards: their value, and that every count of ranks and of rows gives the same bits.

#include <algorithm>

#include "cuda/device_array.h"

using namespace millrace;
using namespace millrace::test;

namespace {

/// Whole steps of 64 inputs, one shard without any, and an end inside a step.
constexpr cuda::DeviceShards kAll{.count = 8, .border = {0, 64, 64, 192, 256, 384, 448, 512, 568}};
constexpr int32_t kOut = 150;

/// Returns the shards of a rank as ranges of its own inputs.
cuda::DeviceShards shards_of(int32_t rank, int32_t ranks) {
  cuda::DeviceShards own{.count = kAll.count / ranks};
  const int32_t first = rank * own.count;
  for (int32_t s = 0; s <= own.count; ++s) own.border[s] = kAll.border[first + s] - kAll.border[first];
  return own;
}

Values columns(const Values& matrix, int64_t width, int64_t begin, int64_t count) {
  Values some;
  for (auto row = matrix.begin(); row != matrix.end(); row += width)
    some.insert(some.end(), row + begin, row + begin + count);
  return some;
}

/// Returns the sums of a rank's shards, [rows, kOut].
Values sums_of(const Values& x, const Values& weights, int32_t rank, int32_t ranks, cuda::MatrixInstruction by) {
  const int32_t width = kAll.border[kAll.count];
  const cuda::DeviceShards shards = shards_of(rank, ranks);
  const int32_t in = shards.border[shards.count];
  const int32_t begin = kAll.border[rank * shards.count];
  const auto rows = static_cast<int32_t>(x.size()) / width;
  const DeviceArray<uint8_t> packed(cuda::packed_weight_bytes(kOut, in, false));
  const DeviceArray<uint16_t> source(bf16_bits(columns(weights, width, begin, in)));
  cuda::pack_weight(nullptr, source.get(), cuda::SourceType::kBF16, kOut, in, 0, cuda::PackAs::kRows, packed.get());
  const cuda::DeviceWeight weight{
      .data = packed.get(), .out_features = kOut, .in_features = in, .by = by, .shards = shards};
  const DeviceArray<uint16_t> device_x(bf16_bits(columns(x, width, begin, in)));
  const DeviceArray<uint8_t> workspace(cuda::sharded_workspace_bytes(weight, rows));
  const DeviceArray<float> out(static_cast<size_t>(rows) * kOut, 0xFF);
  cuda::sharded_matmul(nullptr, device_x.get(), weight, nullptr, rows, out.get(), cuda::OutputType::kF32,
                       workspace.get());
  return out.values();
}

}  // namespace

TEST_CASE("GEMMs in shards have the same bits for all ranks and rows") {
  const auto by = GENERATE(cuda::MatrixInstruction::kMma, cuda::MatrixInstruction::kWgmma);
  INFO("seed " << test_seed());
  Random random(test_seed() + 170);
  const int32_t width = kAll.border[kAll.count];
  const Values weights = rounded_bf16(random.normal(int64_t{kOut} * width));
  const Values x = rounded_bf16(random.normal(int64_t{270} * width));
  const Values all = sums_of(x, weights, 0, 1, by);  // by one block for all shards; fewer rows divide them
  check_close(all, reference::matmul(x, weights, {}, width, kOut), 0.0, 1e-5 * std::sqrt(static_cast<double>(width)));
  for (const int32_t rows : {1, 12, 30, 70, 200}) {
    for (const int32_t ranks : {1, 2, 4, 8}) {
      CAPTURE(rows, ranks, by == cuda::MatrixInstruction::kWgmma);
      if (ranks == 8 && rows > 12) continue;
      const Values some(x.begin(), x.begin() + rows * width);
      std::vector<Values> sums;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        const bool has_inputs = shards_of(rank, ranks).border[kAll.count / ranks] > 0;
        sums.push_back(has_inputs ? sums_of(some, weights, rank, ranks, by) : Values(static_cast<size_t>(rows) * kOut));
      }
      for (size_t half = 1; half < sums.size(); half *= 2) {
        for (size_t rank = 0; rank < sums.size(); rank += 2 * half) {
          for (size_t i = 0; i < sums[rank].size(); ++i) sums[rank][i] += sums[rank + half][i];
        }
      }
      const bool same = std::equal(sums[0].begin(), sums[0].end(), all.begin());
      REQUIRE(same);
    }
  }
}

TEST_CASE("rows get zeros before shards that begin inside a step") {
  const cuda::DeviceShards from{.count = 4, .border = {0, 16, 16, 40, 50}};
  const cuda::DeviceShards to{.count = 4, .border = {0, 64, 64, 128, 138}};
  Random random(7);
  const Values x = rounded_bf16(random.normal(3 * 50));
  const DeviceArray<uint16_t> device_x(bf16_bits(x));
  const DeviceArray<uint16_t> out(3 * 138, 0xFF);
  cuda::spread_shards(nullptr, device_x.get(), from, to, 3, out.get());
  Values wanted(3 * 138);
  for (size_t row = 0; row < 3; ++row) {
    for (size_t s = 0; s < 4; ++s) {
      for (int32_t i = 0; i < from.border[s + 1] - from.border[s]; ++i) {
        const auto at = static_cast<size_t>(i);
        wanted[row * 138 + static_cast<size_t>(to.border[s]) + at] =
            x[row * 50 + static_cast<size_t>(from.border[s]) + at];
      }
    }
  }
  REQUIRE(bf16_values(out.values()) == wanted);
}

TEST_CASE("sums and a bias are added to the hidden state") {
  const DeviceArray<float> sums(std::vector<float>{1, 2, 3, 4, 5, 6});
  const DeviceArray<float> bias(std::vector<float>{10, 20, 30});
  const DeviceArray<float> hidden(std::vector<float>{100, 200, 300, 400, 500, 600});
  cuda::add_sums(nullptr, sums.get(), bias.get(), 2, 3, hidden.get());
  REQUIRE(hidden.values() == Values{111, 222, 333, 414, 525, 636});
  cuda::add_sums(nullptr, sums.get(), nullptr, 2, 3, hidden.get());
  REQUIRE(hidden.values() == Values{112, 224, 336, 418, 530, 642});
}
