// The ops of latent attention with any bounds and any scratch. What they compute, the conformance tests check.

#include "cuda/latent_kernels.h"

#include <cmath>
#include <memory>
#include <numeric>

#include "cuda/device_array.h"
#include "cuda/emulator/emulator.h"

using namespace millrace;
using namespace millrace::test;

namespace {

constexpr int32_t kLatentPageSize = 16;
constexpr tensor::LatentShape kLatents{
    .head_count = 5, .nope_dim = 16, .rope_dim = 8, .value_dim = 12, .latent_dim = 40, .scale = 0.2f};
/// The most rows whose chosen tokens are divided into splits, where the heads of a row fit one block.
constexpr int32_t kMaxDividedRows = 132;

/// How an op is called. What differs changes no bit.
struct LatentCall {
  cuda::MatrixInstruction by = cuda::MatrixInstruction::kMma;
  int32_t slack = 0;         ///< by which bounds exceed the batch
  bool divides = true;       ///< without chosen tokens: into splits
  int32_t slice_rows = 0;    ///< for which the scratch has room at a time; 0: all
  int32_t chosen_count = 0;  ///< rows at positions from it on see as many tokens, the first ones; 0: all rows see all
};

/// Sequences of one cache, which is filled with them.
class LatentBatch {
 public:
  /// Sequence s has `prefix[s]` tokens before its `rows[s]` rows. Without rotation a query is the same at any position.
  LatentBatch(Random& random, const std::vector<int32_t>& rows, const std::vector<int32_t>& prefix,
              const tensor::LatentShape& shape = kLatents, bool rotates = true)
      : shape_(shape), rows_(rows), prefix_(prefix), queries_(random.normal(total() * shape.query_width())) {
    for (int32_t i = 0; i < shape.rope_dim / 2; ++i)
      frequency_.push_back(rotates ? std::pow(0.1f, static_cast<float>(i) / 3.0f) : 0.0f);
    const auto heads = static_cast<size_t>(shape.head_count);
    for (const auto& [out, in, packed] : {std::tuple{shape.latent_dim, shape.nope_dim, &to_latents_},
                                          {shape.value_dim, shape.latent_dim, &from_latents_}}) {
      const size_t bytes = cuda::packed_weight_bytes(out, in, false);
      *packed = std::make_shared<DeviceArray<uint8_t>>(heads * bytes);
      for (size_t head = 0; head < heads; ++head) {
        const DeviceArray<float> matrix(random.normal(int64_t{out} * in, 0.2f));
        cuda::pack_weight(nullptr, matrix.get(), cuda::SourceType::kF32, out, in, 0, cuda::PackAs::kRows,
                          (*packed)->get() + head * bytes);
      }
    }
    for (size_t s = 0; s < rows.size(); ++s)
      page_begin_.push_back(page_begin_.back() + (prefix[s] + rows[s] + kLatentPageSize - 1) / kLatentPageSize);
    page_table_.resize(static_cast<size_t>(page_begin_.back()));
    std::iota(page_table_.rbegin(), page_table_.rend(), 0u);
    cache_.head_dim = shape.key_dim();
    cache_.latent_dim = shape.latent_dim;
    latents_ = bf16_bits(random.normal(static_cast<int64_t>(cuda::kv_page_bytes(cache_) / 2) * page_begin_.back()));
  }

  /// Returns the batch with each row as a sequence of its own, at its position or at `last` if that is less.
  [[nodiscard]] LatentBatch alone(int32_t last) const {
    LatentBatch batch = *this;
    batch.rows_.assign(static_cast<size_t>(total()), 1);
    batch.prefix_.clear();
    batch.page_begin_ = {0};
    batch.page_table_.clear();
    for (size_t s = 0; s < rows_.size(); ++s) {
      for (int32_t row = 0; row < rows_[s]; ++row) {
        batch.prefix_.push_back(std::min(prefix_[s] + row, last));
        batch.page_table_.insert(batch.page_table_.end(), page_table_.begin() + page_begin_[s],
                                 page_table_.begin() + page_begin_[s + 1]);
        batch.page_begin_.push_back(static_cast<int32_t>(batch.page_table_.size()));
      }
    }
    return batch;
  }

  [[nodiscard]] std::vector<uint16_t> run(const LatentCall& call) const {
    std::vector<int32_t> rows_before{0};
    std::vector<int32_t> splits_before{0};
    for (size_t s = 0; s < rows_.size(); ++s) {
      rows_before.push_back(rows_before.back() + rows_[s]);
      splits_before.push_back(splits_before.back() + cuda::splits_of(rows_[s], prefix_[s] + rows_[s]));
    }
    const DeviceArray<int32_t> count(std::vector<int32_t>{static_cast<int32_t>(rows_.size())});
    const DeviceArray<int32_t> row_begin(rows_before);
    const DeviceArray<int32_t> prefix(prefix_);
    const DeviceArray<int32_t> split_begin(splits_before);
    const DeviceArray<int32_t> page_begin(page_begin_);
    const DeviceArray<uint32_t> page_table(page_table_);
    const cuda::DeviceBatch batch{.sequence_count = count.get(),
                                  .row_begin = row_begin.get(),
                                  .prefix = prefix.get(),
                                  .split_begin = split_begin.get(),
                                  .page_begin = page_begin.get(),
                                  .pages = page_table.get()};
    const cuda::BatchBounds bounds{.rows = rows_before.back() + call.slack,
                                   .sequences = static_cast<int32_t>(rows_.size()) + call.slack,
                                   .sequence_rows = *std::ranges::max_element(rows_) + call.slack,
                                   .splits = call.divides ? splits_before.back() + call.slack : 0};
    const DeviceArray<uint8_t> workspace(scratch_bytes(bounds, call), 0xFF);
    const DeviceArray<uint16_t> latents(latents_);
    cuda::DeviceKvCache cache = cache_;
    cache.data = latents.get();
    Values queries = queries_;  // with padding
    queries.resize(static_cast<size_t>(bounds.rows * shape_.query_width()));
    const DeviceArray<float> q(queries);
    const DeviceArray<float> frequency(frequency_);
    const cuda::DeviceRotary rotary{frequency.get(), shape_.rope_dim};
    const cuda::DeviceExpansion expansion{to_latents_->get(), from_latents_->get()};
    const DeviceArray<uint16_t> out(static_cast<size_t>(bounds.rows * shape_.output_width()), 0xFF);
    if (call.chosen_count == 0) {
      cuda::latent_attention(nullptr, q.get(), shape_, rotary, expansion, batch, bounds, cache, 0, call.by, out.get(),
                             workspace.get(), workspace.size());
    } else {
      const DeviceArray<int32_t> chosen(first_tokens(bounds.rows, call.chosen_count));
      cuda::sparse_latent_attention(nullptr, q.get(), shape_, rotary, expansion, chosen.get(), call.chosen_count, batch,
                                    bounds, cache, 0, call.by, out.get(), workspace.get(), workspace.size());
    }
    std::vector<uint16_t> values = out.values();
    values.resize(static_cast<size_t>(total() * shape_.output_width()));
    return values;
  }

 private:
  [[nodiscard]] int64_t total() const { return std::accumulate(rows_.begin(), rows_.end(), int64_t{0}); }
  /// Returns the choices of rows, and an invalid token where a row sees all.
  [[nodiscard]] std::vector<int32_t> first_tokens(int32_t bound, int32_t count) const {
    std::vector<int32_t> chosen(static_cast<size_t>(bound) * static_cast<size_t>(count), -1);
    auto to = chosen.begin();
    for (size_t s = 0; s < rows_.size(); ++s) {
      for (int32_t row = 0; row < rows_[s]; ++row, to += count)
        if (prefix_[s] + row >= count) std::iota(to, to + count, 0);
    }
    return chosen;
  }
  /// Returns the scratch of a slice and of the splits of the whole batch.
  [[nodiscard]] size_t scratch_bytes(const cuda::BatchBounds& bounds, const LatentCall& call) const {
    const auto dense = [&](int32_t rows) {
      cuda::BatchBounds few = bounds;
      few.rows = rows;
      return cuda::latent_attention_workspace_bytes(shape_, few, call.by);
    };
    const auto sparse = [&](int32_t rows) {
      cuda::BatchBounds few = bounds;
      few.rows = rows;
      return cuda::sparse_latent_attention_workspace_bytes(shape_, call.chosen_count, few, call.by);
    };
    const bool is_sparse = call.chosen_count > 0;
    if (call.slice_rows == 0) return is_sparse ? sparse(bounds.rows) : dense(bounds.rows);
    if (!is_sparse) return dense(call.slice_rows);
    const size_t row_bytes = dense(2) - dense(1);
    const size_t row_splits = sparse(2) - sparse(1) - row_bytes;
    const size_t rest = sparse(1) - row_bytes - row_splits;
    const int32_t split_rows = bounds.rows <= kMaxDividedRows ? bounds.rows : 0;
    return rest + static_cast<size_t>(call.slice_rows) * row_bytes + static_cast<size_t>(split_rows) * row_splits;
  }

  tensor::LatentShape shape_;
  std::vector<int32_t> rows_;
  std::vector<int32_t> prefix_;
  std::vector<int32_t> page_begin_{0};
  std::vector<uint32_t> page_table_;
  cuda::DeviceKvCache cache_{.layer_count = 1, .kv_head_count = 1, .page_size = kLatentPageSize};
  std::vector<uint16_t> latents_;
  std::shared_ptr<const DeviceArray<uint8_t>> to_latents_;
  std::shared_ptr<const DeviceArray<uint8_t>> from_latents_;
  Values frequency_;
  Values queries_;  // [rows, query_width]
};

/// Checks rows that see the first tokens against latent_attention of rows before all others.
void check_first_tokens(const LatentBatch& batch, cuda::MatrixInstruction by, const std::vector<int32_t>& slices) {
  constexpr int32_t kChosen = 1299;
  const std::vector<uint16_t> wanted = batch.alone(kChosen - 1).run({.by = by});
  for (const int32_t slice_rows : slices) {
    INFO((by == cuda::MatrixInstruction::kWgmma ? "wgmma" : "mma") << ", slices of " << slice_rows << " rows");
    REQUIRE(batch.run({.by = by, .slice_rows = slice_rows, .chosen_count = kChosen}) == wanted);
  }
  REQUIRE(batch.run({.by = by, .slack = 2, .chosen_count = kChosen}) == wanted);
}

}  // namespace

TEST_CASE("bits of latent attention depend on no bound or slice") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 160);
  emulator::set_order_seed(test_seed());
  const LatentBatch batch(random, {3, 0, 40, 1, 16, 17, 0}, {600, 5, 20, 0, 250, 500, 0});
  const auto by = GENERATE(cuda::MatrixInstruction::kMma, cuda::MatrixInstruction::kWgmma);
  CAPTURE(by == cuda::MatrixInstruction::kWgmma);
  const std::vector<uint16_t> wanted = batch.run({.by = by});
  REQUIRE(batch.run({.by = by, .divides = false}) == wanted);
  REQUIRE(batch.run({.by = by, .slack = 5}) == wanted);
  for (const bool divides : {true, false}) {
    for (const int32_t slice_rows : {1, 7, 64}) {
      INFO((divides ? "with" : "without") << " splits, slices of " << slice_rows << " rows");
      REQUIRE(batch.run({.by = by, .slack = 2, .divides = divides, .slice_rows = slice_rows}) == wanted);
    }
  }
}

TEST_CASE("chosen tokens of several splits have the bits of all tokens") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 161);
  emulator::set_order_seed(test_seed());
  const auto by = GENERATE(cuda::MatrixInstruction::kMma, cuda::MatrixInstruction::kWgmma);
  // Positions on both sides of a split's end, and a sequence whose first row sees all tokens and whose others choose.
  const std::vector<int32_t> rows = {1, 1, 1, 1, 1, 0, 1, 4};
  const std::vector<int32_t> prefix = {1299, 0, 255, 256, 511, 0, 512, 1298};
  check_first_tokens({random, {1}, {1299}, kLatents, false}, by, {0});
  check_first_tokens({random, rows, prefix, kLatents, false}, by, {0, 1, 7});
  // More rows walk over all their keys, and by wgmma there are more rows than blocks.
  std::vector<int32_t> many_rows = rows;
  std::vector<int32_t> many_prefix = prefix;
  for (int sequence = 0; sequence < 9; ++sequence) {
    many_rows.push_back(30);
    many_prefix.push_back(0);
  }
  many_rows.push_back(2);
  many_prefix.push_back(1299);
  check_first_tokens({random, many_rows, many_prefix, kLatents, false}, by, {0, 100});
}

TEST_CASE("chosen latents of 512 values have the bits of all tokens") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 162);
  emulator::set_order_seed(test_seed());
  const auto by = GENERATE(cuda::MatrixInstruction::kMma, cuda::MatrixInstruction::kWgmma);
  const tensor::LatentShape shape{
      .head_count = 3, .nope_dim = 16, .rope_dim = 64, .value_dim = 12, .latent_dim = 512, .scale = 0.1f};
  check_first_tokens({random, {2, 1}, {1298, 512}, shape, false}, by, {0, 1});
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
