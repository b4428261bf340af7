#include <catch2/catch.hpp>

#include "conformance/sequences.h"
#include "cpu/ops.h"

using namespace millrace;
using tensor::DType;

TEST_CASE("attention over KV splits takes scratch for its rows only") {
  constexpr int32_t kHeads = 4;
  constexpr int32_t kKvHeads = 2;
  constexpr int32_t kDim = 64;
  constexpr int32_t kPrefix = 8 * 2048;  // nine splits with the row itself
  constexpr int32_t kPageSize = 64;
  constexpr size_t kSequences = 3;
  for (const cpu::Isa isa : cpu::available_isas()) {
    INFO(cpu::to_string(isa));
    cpu::Device device(*cpu::kernels_for(isa), DType::kF32, 4, {});
    const cpu::CpuKvCache cache({.layer_count = 1,
                                 .kv_head_count = kKvHeads,
                                 .head_dim = kDim,
                                 .page_size = kPageSize,
                                 .page_count = kPrefix / kPageSize + 1},
                                DType::kF32, 16);
    std::vector<PageId> pages;
    std::vector<int32_t> row_begin = {0};
    std::vector<int32_t> page_begin = {0};
    for (size_t s = 0; s < kSequences; ++s) {
      for (uint32_t page = 0; page <= kPrefix / kPageSize; ++page) pages.emplace_back(page);
      row_begin.push_back(row_begin.back() + 1);
      page_begin.push_back(static_cast<int32_t>(pages.size()));
    }
    const std::vector<int32_t> prefix(kSequences, kPrefix);
    std::vector<float> q(kSequences * kHeads * kDim, 1.0f);
    std::vector<float> out(q.size(), 1.0f);
    const auto matrix = [&](std::vector<float>& values) {
      return tensor::Matrix{.data = reinterpret_cast<std::byte*>(values.data()),
                            .dtype = DType::kF32,
                            .rows = kSequences,
                            .cols = kHeads * kDim};
    };
    cpu::attention(
        device, matrix(q), {.head_count = kHeads, .kv_head_count = kKvHeads, .head_dim = kDim, .scale = 0.125f},
        {.row_begin = row_begin, .prefix = prefix, .page_begin = page_begin, .pages = pages}, cache, 0, matrix(out));
    REQUIRE(out == std::vector<float>(q.size(), 0.0f));
    // Per head nine splits, of two rows with 16 sums and the channels, and beside them some maxima.
    constexpr size_t kWanted = kSequences * kKvHeads * 9 * 2 * (16 + kDim) * sizeof(float);
    REQUIRE(device.shared_scratch.bytes() >= kWanted);
    REQUIRE(device.shared_scratch.bytes() <= 2 * kWanted);
  }
}
