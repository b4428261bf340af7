// The ops of latent attention with any bounds and any scratch. What they compute, the conformance tests check.

#include "cuda/latent_kernels.h"

#include <numeric>

#include "cuda/device_array.h"
#include "cuda/emulator/emulator.h"

using namespace millrace;
using namespace millrace::test;

namespace {

constexpr int32_t kLatentPageSize = 16;
constexpr tensor::LatentShape kLatents{
    .head_count = 5, .nope_dim = 16, .rope_dim = 8, .value_dim = 12, .latent_dim = 40, .scale = 0.2f};

/// Sequences of one cache, which is filled with them.
class LatentBatch {
 public:
  /// Sequence s has `prefix[s]` tokens before its `rows[s]` rows.
  LatentBatch(Random& random, const std::vector<int32_t>& rows, const std::vector<int32_t>& prefix)
      : rows_(rows), prefix_(prefix), queries_(random.normal(total() * kLatents.query_width())) {
    const auto heads = static_cast<size_t>(kLatents.head_count);
    for (const auto& [out, in, packed] : {std::tuple{kLatents.latent_dim, kLatents.nope_dim, &to_latents_},
                                          {kLatents.value_dim, kLatents.latent_dim, &from_latents_}}) {
      const size_t bytes = cuda::packed_weight_bytes(out, in, false);
      *packed = std::make_unique<DeviceArray<uint8_t>>(heads * bytes);
      for (size_t head = 0; head < heads; ++head) {
        const DeviceArray<float> matrix(random.normal(int64_t{out} * in, 0.2f));
        cuda::pack_weight(nullptr, matrix.get(), cuda::SourceType::kF32, out, in, 0, cuda::PackAs::kRows,
                          (*packed)->get() + head * bytes);
      }
    }
    int32_t pages = 0;
    for (size_t s = 0; s < rows.size(); ++s) {
      page_begin_.push_back(pages += (prefix[s] + rows[s] + kLatentPageSize - 1) / kLatentPageSize);
      row_begin_.push_back(row_begin_.back() + rows[s]);
      split_begin_.push_back(split_begin_.back() + cuda::splits_of(rows[s], prefix[s] + rows[s]));
    }
    page_table_.resize(static_cast<size_t>(pages));
    std::iota(page_table_.rbegin(), page_table_.rend(), 0u);
    cache_.latent_dim = kLatents.latent_dim;
    latents_ = bf16_bits(random.normal(static_cast<int64_t>(cuda::kv_page_bytes(cache_) / 2) * pages));
  }

  /// Returns the outputs with bounds that exceed the batch by `slack`, without splits unless `divides`, and with
  /// scratch for `slice_rows` rows at a time (0: all).
  [[nodiscard]] std::vector<uint16_t> run(cuda::MatrixInstruction by, int32_t slack, bool divides,
                                          int32_t slice_rows) const {
    const DeviceArray<int32_t> count(std::vector<int32_t>{static_cast<int32_t>(rows_.size())});
    const DeviceArray<int32_t> row_begin(row_begin_);
    const DeviceArray<int32_t> prefix(prefix_);
    const DeviceArray<int32_t> split_begin(split_begin_);
    const DeviceArray<int32_t> page_begin(page_begin_);
    const DeviceArray<uint32_t> page_table(page_table_);
    const cuda::DeviceBatch batch{.sequence_count = count.get(),
                                  .row_begin = row_begin.get(),
                                  .prefix = prefix.get(),
                                  .split_begin = split_begin.get(),
                                  .page_begin = page_begin.get(),
                                  .pages = page_table.get()};
    cuda::BatchBounds bounds{.rows = row_begin_.back() + slack,
                             .sequences = static_cast<int32_t>(rows_.size()) + slack,
                             .sequence_rows = *std::ranges::max_element(rows_) + slack,
                             .splits = divides ? split_begin_.back() + slack : 0};
    const size_t whole = cuda::latent_attention_workspace_bytes(kLatents, bounds, by);
    const size_t saved = slice_rows == 0 ? 0 : whole - scratch_of(bounds, slice_rows, by);
    const DeviceArray<uint8_t> workspace(whole - saved, 0xFF);
    const DeviceArray<uint16_t> latents(latents_);
    cuda::DeviceKvCache cache = cache_;
    cache.data = latents.get();
    Values queries = queries_;  // with padding
    queries.resize(static_cast<size_t>(bounds.rows * kLatents.query_width()));
    const DeviceArray<float> q(queries);
    const DeviceArray<float> frequency(Values{1.0f, 0.5f, 0.2f, 0.1f});
    const DeviceArray<uint16_t> out(static_cast<size_t>(bounds.rows * kLatents.output_width()), 0xFF);
    cuda::latent_attention(nullptr, q.get(), kLatents, {frequency.get(), kLatents.rope_dim},
                           {to_latents_->get(), from_latents_->get()}, batch, bounds, cache, 0, by, out.get(),
                           workspace.get(), workspace.size());
    std::vector<uint16_t> values = out.values();
    values.resize(static_cast<size_t>(total() * kLatents.output_width()));
    return values;
  }

 private:
  [[nodiscard]] int64_t total() const { return std::accumulate(rows_.begin(), rows_.end(), int64_t{0}); }
  /// Returns the scratch of a slice of `rows` rows and of the splits of the whole batch.
  static size_t scratch_of(const cuda::BatchBounds& bounds, int32_t rows, cuda::MatrixInstruction by) {
    cuda::BatchBounds few = bounds;
    few.rows = rows;
    return cuda::latent_attention_workspace_bytes(kLatents, few, by);
  }

  std::vector<int32_t> rows_;
  std::vector<int32_t> prefix_;
  std::vector<int32_t> row_begin_{0};
  std::vector<int32_t> split_begin_{0};
  std::vector<int32_t> page_begin_{0};
  std::vector<uint32_t> page_table_;
  cuda::DeviceKvCache cache_{
      .layer_count = 1, .kv_head_count = 1, .head_dim = kLatents.key_dim(), .page_size = kLatentPageSize};
  std::vector<uint16_t> latents_;
  std::unique_ptr<DeviceArray<uint8_t>> to_latents_;
  std::unique_ptr<DeviceArray<uint8_t>> from_latents_;
  Values queries_;  // [rows, query_width]
};

}  // namespace

TEST_CASE("bits of latent attention depend on no bound or slice") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 160);
  emulator::set_order_seed(test_seed());
  const LatentBatch batch(random, {3, 0, 40, 1, 16, 17, 0}, {600, 5, 20, 0, 250, 500, 0});
  const auto by = GENERATE(cuda::MatrixInstruction::kMma, cuda::MatrixInstruction::kWgmma);
  CAPTURE(by == cuda::MatrixInstruction::kWgmma);
  const std::vector<uint16_t> wanted = batch.run(by, 0, true, 0);
  REQUIRE(batch.run(by, 0, false, 0) == wanted);
  REQUIRE(batch.run(by, 5, true, 0) == wanted);
  for (const bool divides : {true, false}) {
    for (const int32_t slice_rows : {1, 7, 64}) {
      INFO((divides ? "with" : "without") << " splits, slices of " << slice_rows << " rows");
      REQUIRE(batch.run(by, 2, divides, slice_rows) == wanted);
    }
  }
}

TEST_CASE("latents too large for the kernels are refused") {
  const cuda::DeviceKvCache cache{
      .layer_count = 1, .kv_head_count = 1, .head_dim = 584, .latent_dim = 520, .page_size = 1};
  const tensor::LatentShape shape{
      .head_count = 1, .nope_dim = 8, .rope_dim = 64, .value_dim = 8, .latent_dim = 520, .scale = 1.0f};
  REQUIRE_THROWS_WITH(cuda::latent_attention(nullptr, nullptr, shape, {}, {}, {}, {}, cache, 0,
                                             cuda::MatrixInstruction::kMma, nullptr, nullptr, 0),
                      "latent attention: found latents of 520 and keys of 584 values, wanted at most 512 and 576");
}
