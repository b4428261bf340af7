// The ops of latent attention with any bounds and any scratch. What they compute, the conformance tests check.

#include "cuda/latent_kernels.h"

#include <cmath>
#include <memory>
#include <numeric>

#include "cpu/kv_codes.h"
#include "cuda/device_array.h"
#include "cuda/emulator/emulator.h"
#include "cuda_backend/plain_rows.h"

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

tensor::KvDType dtype_of(cuda::KvElement element) {
  return element == cuda::KvElement::kInt8 ? tensor::KvDType::kInt8 : tensor::KvDType::kFp8E4M3;
}

/// Writes a latent and its key in bf16 [latent_dim + rope_dim] as a token of codes.
void write_codes(const cuda::DeviceKvCache& cache, const uint16_t* from, std::byte* token) {
  Values latent(from, from + cache.latent_dim);
  std::transform(from, from + cache.latent_dim, latent.begin(), cuda::to_float);
  cpu::encode_values(dtype_of(cache.element), cuda::latent_scale_channels(cache), latent, token,
                     token + cuda::latent_scales_offset(cache));
  std::copy(from + cache.latent_dim, from + cache.head_dim, cuda::bf16(token + cuda::code_stride(cache.latent_dim)));
}

/// Replaces a latent in bf16 by the values of its codes.
void read_codes(const cuda::DeviceKvCache& cache, const std::byte* token, uint16_t* to) {
  const uint16_t* const scales = cuda::bf16(token + cuda::latent_scales_offset(cache));
  for (int32_t i = 0; i < cache.latent_dim; ++i) {
    const float scale = cuda::to_float(scales[i / cuda::latent_scale_channels(cache)]);
    to[i] = cuda::to_bf16(cuda::code_number(cache.element, static_cast<uint8_t>(token[i])) * scale);
  }
}

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

  /// Returns the batch over codes of its latents, and over the values of these codes in bf16.
  [[nodiscard]] std::pair<LatentBatch, LatentBatch> as_codes(cuda::KvElement element) const {
    std::pair<LatentBatch, LatentBatch> batches(*this, *this);
    auto& [coded, plain] = batches;
    coded.cache_.element = element;
    const auto stride = static_cast<size_t>(cuda::channel_stride(cache_.head_dim));
    const auto bytes = static_cast<size_t>(cuda::latent_token_bytes(coded.cache_));
    const size_t tokens = latents_.size() / stride;
    coded.latents_.assign(tokens * bytes / sizeof(uint16_t), 0);
    for (size_t token = 0; token < tokens; ++token) {
      auto* const codes = reinterpret_cast<std::byte*>(coded.latents_.data()) + token * bytes;
      write_codes(coded.cache_, &latents_[token * stride], codes);
      read_codes(coded.cache_, codes, &plain.latents_[token * stride]);
    }
    return batches;
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

TEST_CASE("latents in codes have the bits of their values in bf16") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 163);
  emulator::set_order_seed(test_seed());
  const auto by = GENERATE(cuda::MatrixInstruction::kMma, cuda::MatrixInstruction::kWgmma);
  const auto element = GENERATE(cuda::KvElement::kInt8, cuda::KvElement::kE4M3);
  CAPTURE(by == cuda::MatrixInstruction::kWgmma, element == cuda::KvElement::kInt8);
  const auto check = [&](const LatentBatch& batch, const std::vector<LatentCall>& calls) {
    const auto& [coded, plain] = batch.as_codes(element);
    for (const LatentCall& call : calls) REQUIRE(coded.run(call) == plain.run(call));
  };
  // Several splits, walks over several of them, and rows that choose.
  check({random, {3, 0, 40, 1, 17}, {600, 5, 20, 0, 500}},
        {{.by = by}, {.by = by, .divides = false}, {.by = by, .slice_rows = 7}, {.by = by, .chosen_count = 30}});
  // Latents that end inside a chunk of eight, inside 16 codes, and of the largest size.
  for (const auto& [latent, rope] : {std::pair{43, 10}, std::pair{24, 168}, std::pair{200, 64}, std::pair{512, 64}}) {
    const tensor::LatentShape shape{
        .head_count = 3, .nope_dim = 16, .rope_dim = rope, .value_dim = 12, .latent_dim = latent, .scale = 0.1f};
    INFO("latents of " << latent << ", keys of " << rope);
    check({random, {5, 1}, {70, 30}, shape}, {{.by = by}, {.by = by, .chosen_count = 29}});
  }
}

TEST_CASE("store_latent writes the codes of the CPU") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 164);
  const auto element = GENERATE(cuda::KvElement::kInt8, cuda::KvElement::kE4M3);
  for (const auto& [latent_dim, rope_dim] : {std::pair{43, 6}, std::pair{128, 8}, std::pair{512, 64}}) {
    constexpr int32_t kRows = 9;
    constexpr float kEpsilon = 1e-6f;
    const tensor::LatentShape shape{.rope_dim = rope_dim, .latent_dim = latent_dim};
    const cuda::DeviceKvCache sizes{.layer_count = 2,
                                    .kv_head_count = 1,
                                    .head_dim = shape.key_dim(),
                                    .latent_dim = latent_dim,
                                    .index_dim = 8,
                                    .page_size = 16,
                                    .element = element};
    // Sums of squares of small integers are exact in any order.
    Values kv(static_cast<size_t>(kRows * shape.key_dim()));
    for (float& value : kv) value = static_cast<float>(random.integer(-9, 9));
    for (int32_t i = 64; i < std::min(96, latent_dim); ++i) kv[static_cast<size_t>(i)] = 0.0f;  // of one scale
    kv[static_cast<size_t>(3 * shape.key_dim()) + 5] = std::nanf("");
    const Values norm = random.normal(latent_dim);
    const DeviceArray<float> rows(kv);
    const DeviceArray<float> weights(norm);
    const DeviceArray<float> frequency(Values(static_cast<size_t>(rope_dim / 2), 0.0f));  // no rotation
    const DeviceArray<int32_t> count(std::vector<int32_t>{1});
    const DeviceArray<int32_t> row_begin(std::vector<int32_t>{0, kRows});
    const DeviceArray<int32_t> zeros(std::vector<int32_t>{0, 0});
    const DeviceArray<uint32_t> pages(std::vector<uint32_t>{1});
    const DeviceArray<uint8_t> memory(2 * cuda::kv_page_bytes(sizes), 0xFF);
    cuda::DeviceKvCache cache = sizes;
    cache.data = memory.get();
    cuda::store_latent(nullptr, rows.get(), shape, {frequency.get(), rope_dim}, weights.get(), kEpsilon,
                       {.sequence_count = count.get(),
                        .row_begin = row_begin.get(),
                        .prefix = zeros.get(),
                        .page_begin = zeros.get(),
                        .pages = pages.get()},
                       {.rows = kRows, .sequences = 1, .sequence_rows = kRows}, cache, 1);
    const auto token_bytes = static_cast<size_t>(cuda::latent_token_bytes(cache));
    std::vector<uint8_t> wanted(memory.size(), 0xFF);
    for (int32_t row = 0; row < kRows; ++row) {
      const float* const from = &kv[static_cast<size_t>(row * shape.key_dim())];
      uint8_t* const to =
          &wanted[cuda::kv_page_bytes(cache) + cuda::kv_layer_bytes(cache) + static_cast<size_t>(row) * token_bytes];
      std::fill_n(to, token_bytes, uint8_t{0});
      Values latent(from, from + latent_dim);
      float squares = 0.0f;
      for (const float value : latent) squares += value * value;
      const float factor = 1.0f / std::sqrt(squares / static_cast<float>(latent_dim) + kEpsilon);
      for (size_t i = 0; i < latent.size(); ++i) latent[i] = latent[i] * factor * norm[i];
      auto* const key = reinterpret_cast<uint16_t*>(to + cuda::code_stride(latent_dim));
      if (row == 3) {  // a fault moves to the key
        std::fill_n(key, rope_dim, uint16_t{0x7FC0});
        continue;
      }
      auto* const bytes = reinterpret_cast<std::byte*>(to);
      cpu::encode_values(dtype_of(element), cuda::latent_scale_channels(cache), latent, bytes,
                         bytes + cuda::latent_scales_offset(cache));
      std::transform(from + latent_dim, from + shape.key_dim(), key, cuda::to_bf16);
    }
    REQUIRE(memory.values() == wanted);
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
  const cuda::DeviceKvCache codes{.layer_count = 1,
                                  .kv_head_count = 1,
                                  .head_dim = 576,
                                  .latent_dim = 8,
                                  .page_size = 1,
                                  .element = cuda::KvElement::kInt8};
  const tensor::LatentShape short_latents{
      .head_count = 1, .nope_dim = 8, .rope_dim = 568, .value_dim = 8, .latent_dim = 8, .scale = 1.0f};
  REQUIRE_THROWS_WITH(cuda::latent_attention(nullptr, nullptr, short_latents, {}, {}, {}, {}, codes, 0,
                                             cuda::MatrixInstruction::kMma, nullptr, nullptr, 0),
                      "latent attention: found 1168 bytes per latent in codes, wanted at most 1152");
}
