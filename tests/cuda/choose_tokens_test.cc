// The ops of an indexer with any bounds, any scratch and rows of many parts. What they compute, the conformance tests
// check.

#include <numeric>
#include <set>

#include "cuda/device_array.h"
#include "cuda/emulator/emulator.h"
#include "cuda/indexer_kernels.h"

using namespace millrace;
using namespace millrace::test;

namespace {

constexpr int32_t kIndexPageSize = 64;

/// Sequences whose tokens have drawn keys, of few different kinds so that scores are often equal.
class IndexBatch {
 public:
  IndexBatch(Random& random, const tensor::IndexerShape& shape, std::vector<int32_t> rows, std::vector<int32_t> prefix)
      : shape_(shape), rows_(std::move(rows)), prefix_(std::move(prefix)) {
    cache_.index_dim = shape.head_dim;
    int32_t pages = 0;
    for (size_t s = 0; s < rows_.size(); ++s) {
      pages += (prefix_[s] + rows_[s] + kIndexPageSize - 1) / kIndexPageSize;
      page_begin_.push_back(pages);
      row_begin_.push_back(row_begin_.back() + rows_[s]);
    }
    page_table_.resize(static_cast<size_t>(pages));
    std::iota(page_table_.rbegin(), page_table_.rend(), 0u);
    q_ = random.normal(row_begin_.back() * shape.query_width());
    weights_ = random.normal(int64_t{row_begin_.back()} * shape.head_count);
    constexpr int64_t kKinds = 500;
    const std::vector<uint16_t> kinds = bf16_bits(random.normal(kKinds * shape.head_dim));
    const auto stride = static_cast<size_t>(cuda::channel_stride(shape.head_dim));
    const size_t page_values = cuda::kv_page_bytes(cache_) / sizeof(uint16_t);
    keys_.assign(page_values * static_cast<size_t>(pages), 0x7FC0);
    for (size_t page = 0; page < static_cast<size_t>(pages); ++page) {
      for (size_t token = 0; token < kIndexPageSize; ++token) {
        const auto kind = static_cast<size_t>(random.integer(0, kKinds - 1) * shape.head_dim);
        uint16_t* const to = &keys_[page * page_values + page_values - (kIndexPageSize - token) * stride];
        std::fill_n(to, stride, uint16_t{0});
        std::copy_n(&kinds[kind], static_cast<size_t>(shape.head_dim), to);
      }
    }
  }

  /// Returns the choices with bounds that exceed the batch by `slack`, and scratch for `slice_rows` rows (0: all).
  [[nodiscard]] std::vector<int32_t> run(int32_t slack, int32_t slice_rows) const {
    const DeviceArray<int32_t> count(std::vector<int32_t>{static_cast<int32_t>(rows_.size())});
    const DeviceArray<int32_t> row_begin(row_begin_);
    const DeviceArray<int32_t> prefix(prefix_);
    const DeviceArray<int32_t> page_begin(page_begin_);
    const DeviceArray<uint32_t> page_table(page_table_);
    const cuda::DeviceBatch batch{.sequence_count = count.get(),
                                  .row_begin = row_begin.get(),
                                  .prefix = prefix.get(),
                                  .page_begin = page_begin.get(),
                                  .pages = page_table.get()};
    cuda::BatchBounds bounds{.rows = row_begin_.back() + slack,
                             .sequences = static_cast<int32_t>(rows_.size()) + slack,
                             .context = slack * 500};
    for (size_t s = 0; s < rows_.size(); ++s) bounds.context = std::max(bounds.context, slack + prefix_[s] + rows_[s]);
    cuda::BatchBounds slice = bounds;
    if (slice_rows > 0) slice.rows = slice_rows;
    const DeviceArray<uint8_t> workspace(cuda::choose_tokens_workspace_bytes(shape_, slice), 0xFF);
    const DeviceArray<uint16_t> keys(keys_);
    cuda::DeviceKvCache cache = cache_;
    cache.data = keys.get();
    Values queries = q_;  // with padding
    queries.resize(static_cast<size_t>(bounds.rows * shape_.query_width()));
    Values weights = weights_;
    weights.resize(static_cast<size_t>(bounds.rows * shape_.head_count));
    const DeviceArray<float> q(queries);
    const DeviceArray<float> w(weights);
    const DeviceArray<float> frequency(Values{1.0f, 0.5f, 0.2f, 0.1f});
    const DeviceArray<int32_t> chosen(
        std::vector<int32_t>(static_cast<size_t>(bounds.rows) * static_cast<size_t>(shape_.chosen_count), -1));
    cuda::choose_tokens(nullptr, q.get(), w.get(), shape_, {frequency.get(), shape_.rope_dim}, batch, bounds, cache, 0,
                        chosen.get(), workspace.get(), workspace.size());
    std::vector<int32_t> values = chosen.values();
    values.resize(static_cast<size_t>(row_begin_.back()) * static_cast<size_t>(shape_.chosen_count));
    return values;
  }

  /// Returns the reference's scores of the tokens that row `row` of sequence `s` may see.
  [[nodiscard]] Values scores(size_t s, int32_t row) const {
    const int32_t position = prefix_[s] + row;
    const auto width = static_cast<size_t>(shape_.query_width());
    const auto first = static_cast<size_t>(row_begin_[s] + row);
    const size_t page_values = cuda::kv_page_bytes(cache_) / sizeof(uint16_t);
    const auto stride = static_cast<size_t>(cuda::channel_stride(shape_.head_dim));
    Values query(q_.begin() + static_cast<ptrdiff_t>(first * width),
                 q_.begin() + static_cast<ptrdiff_t>((first + 1) * width));
    for (size_t head = 0; head < width; head += static_cast<size_t>(shape_.head_dim))
      reference::rotate(std::span(query).subspan(head, static_cast<size_t>(shape_.rope_dim)),
                        Values{1.0f, 0.5f, 0.2f, 0.1f}, 1.0f, position);
    Values keys;
    for (int32_t token = 0; token <= position; ++token) {
      const size_t page = page_table_[static_cast<size_t>(page_begin_[s] + token / kIndexPageSize)];
      const uint16_t* const key = &keys_[page * page_values + page_values -
                                         static_cast<size_t>(kIndexPageSize - token % kIndexPageSize) * stride];
      for (int32_t i = 0; i < shape_.head_dim; ++i) keys.push_back(tensor::BFloat16{key[i]}.to_float());
    }
    const auto heads = static_cast<size_t>(shape_.head_count);
    return reference::index_scores(reference::rounded(query, tensor::DType::kBF16),
                                   Values(weights_.begin() + static_cast<ptrdiff_t>(first * heads),
                                          weights_.begin() + static_cast<ptrdiff_t>((first + 1) * heads)),
                                   keys, shape_.head_dim);
  }

 private:
  const tensor::IndexerShape shape_;
  std::vector<int32_t> rows_;
  std::vector<int32_t> prefix_;
  std::vector<int32_t> row_begin_{0};
  std::vector<int32_t> page_begin_{0};
  std::vector<uint32_t> page_table_;
  cuda::DeviceKvCache cache_{
      .layer_count = 1, .kv_head_count = 1, .head_dim = 8, .latent_dim = 4, .page_size = kIndexPageSize};
  std::vector<uint16_t> keys_;
  Values q_;        // [rows, query_width]
  Values weights_;  // [rows, heads]
};

}  // namespace

TEST_CASE("bits of chosen tokens depend on no bound or slice") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 170);
  emulator::set_order_seed(test_seed());
  const auto& [heads, dim] = GENERATE(table<int32_t, int32_t>({{5, 40}, {70, 128}, {3, 200}}));
  CAPTURE(heads, dim);
  const IndexBatch batch(random, {.head_count = heads, .head_dim = dim, .rope_dim = 8, .chosen_count = 24},
                         {3, 0, 40, 1, 33, 0}, {270, 5, 0, 255, 20, 0});
  const std::vector<int32_t> wanted = batch.run(0, 0);
  REQUIRE(batch.run(3, 0) == wanted);
  REQUIRE(batch.run(2, 1) == wanted);
  REQUIRE(batch.run(0, 7) == wanted);
}

TEST_CASE("rows of many parts choose as one part does") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 171);
  emulator::set_order_seed(test_seed());
  // A part has 16384 tokens. The list of the longest row has several parts, too.
  const auto& [chosen, prefix] = GENERATE(
      table<int32_t, int32_t>({{7, 16383}, {7, 16384}, {100, 40000}, {2047, 20000}, {2048, 140000}, {3000, 30000}}));
  CAPTURE(chosen, prefix);
  const tensor::IndexerShape shape{.head_count = 2, .head_dim = 16, .rope_dim = 8, .chosen_count = chosen};
  const IndexBatch batch(random, shape, {1, 1}, {prefix, chosen});
  const std::vector<int32_t> found = batch.run(0, 0);
  for (size_t s = 0; s < 2; ++s) {
    const Values scores = batch.scores(s, 0);
    const auto first = found.begin() + static_cast<ptrdiff_t>(s) * chosen;
    std::vector<bool> is_chosen(scores.size(), false);
    float least = std::numeric_limits<float>::infinity();
    for (auto each = first; each != first + chosen; ++each) {
      REQUIRE((*each >= 0 && *each < std::ssize(scores)));
      REQUIRE((each == first || *each > *(each - 1)));
      is_chosen[static_cast<size_t>(*each)] = true;
      least = std::min(least, scores[static_cast<size_t>(*each)]);
    }
    double size = 1.0;
    for (const float score : scores) size = std::max(size, std::abs(double{score}));
    int64_t missed = 0;
    std::set<float> left;
    for (size_t i = 0; i < scores.size(); ++i) {
      REQUIRE_FALSE((is_chosen[i] && left.contains(scores[i])));  // of equal scores the lower position is chosen
      if (!is_chosen[i]) left.insert(scores[i]);
      missed += static_cast<int64_t>(!is_chosen[i] && double{scores[i]} > double{least} + 1e-5 * size);
    }
    REQUIRE(missed == 0);
  }
}

TEST_CASE("indexers too large for the kernels are refused") {
  REQUIRE_THROWS_WITH(cuda::choose_tokens(nullptr, nullptr, nullptr,
                                          {.head_count = 1, .head_dim = 257, .rope_dim = 8, .chosen_count = 1}, {}, {},
                                          {}, {}, 0, nullptr, nullptr, 0),
                      "choose_tokens: found an indexer of 257 channels, wanted at most 256");
}
