#include <algorithm>
#include <limits>
#include <numeric>

#include "conformance/sequences.h"
#include "cuda/device_array.h"
#include "cuda/emulator/emulator.h"
#include "tensor/fp8.h"

using namespace millrace;
using namespace millrace::test;

namespace {

constexpr float kEpsilon = 1e-6f;
constexpr cuda::KvElement kCodes[] = {cuda::KvElement::kInt8, cuda::KvElement::kE4M3};
constexpr int32_t kCacheLayers = 2;
constexpr int32_t kCacheLayer = 1;

/// The keys and values of many sequences, and the ops over them.
class Cache {
 public:
  Cache(const AttentionCase& sizes, const Weights& weights, cuda::KvElement element, int32_t page_count)
      : sizes_(sizes),
        shape_{.layer_count = kCacheLayers,
               .kv_head_count = sizes.kv_head_count,
               .head_dim = sizes.head_dim,
               .page_size = sizes.page_size,
               .element = element},
        frequency_(weights.inverse_frequency),
        q_norm_(weights.q_norm),
        k_norm_(weights.k_norm),
        sinks_(weights.sinks),
        // NaNs everywhere: what was not written must not be read.
        pages_(cuda::kv_page_bytes(shape_) * static_cast<size_t>(page_count), 0xFF) {
    shape_.data = pages_.get();
  }

  struct Batch {
    std::vector<int32_t> row_begin = {0};
    std::vector<int32_t> prefix;
    std::vector<int32_t> page_begin = {0};
    std::vector<uint32_t> pages;
    Values qkv;
  };
  /// Stores the rows' keys and values and attends. `slack` is added to every bound. Without `divides` there is no room
  /// for partial results.
  Values step(const Batch& given, int32_t slack, bool divides) const {
    const auto sequences = static_cast<int32_t>(given.prefix.size());
    const DeviceArray<int32_t> count(std::vector<int32_t>{sequences});
    const DeviceArray<int32_t> row_begin(given.row_begin);
    const DeviceArray<int32_t> prefix(given.prefix);
    const DeviceArray<int32_t> page_begin(given.page_begin);
    std::vector<int32_t> splits{0};
    cuda::BatchBounds bounds{
        .rows = given.row_begin.back() + slack, .sequences = sequences + slack, .sequence_rows = slack, .splits = 0};
    for (size_t s = 0; s < given.prefix.size(); ++s) {
      const int32_t rows = given.row_begin[s + 1] - given.row_begin[s];
      bounds.sequence_rows = std::max(bounds.sequence_rows, rows);
      splits.push_back(splits.back() + cuda::splits_of(rows, given.prefix[s] + rows));
    }
    if (divides) bounds.splits = splits.back() + slack;
    const DeviceArray<int32_t> split_begin(splits);
    const DeviceArray<uint32_t> pages(given.pages);
    const cuda::DeviceBatch batch{.sequence_count = count.get(),
                                  .row_begin = row_begin.get(),
                                  .prefix = prefix.get(),
                                  .split_begin = split_begin.get(),
                                  .page_begin = page_begin.get(),
                                  .pages = pages.get()};
    const auto width = static_cast<size_t>(sizes_.head_count) * static_cast<size_t>(sizes_.head_dim);
    const size_t count_q = static_cast<size_t>(given.row_begin.back()) * width;
    const DeviceArray<float> qkv(given.qkv);
    const DeviceArray<uint16_t> q(count_q, 0xFF);
    const DeviceArray<uint16_t> out(count_q, 0xFF);
    const cuda::DeviceRotary rotary{.inverse_frequency = frequency_.get(),
                                    .rotary_dim = sizes_.rotary_dim,
                                    .attention_factor = sizes_.attention_factor,
                                    .query_beta = sizes_.query_beta,
                                    .query_period = sizes_.query_period,
                                    .query_offset = sizes_.query_offset};
    const cuda::HeadNorms norms{.q = sizes_.norms ? q_norm_.get() : nullptr,
                                .k = sizes_.norms ? k_norm_.get() : nullptr,
                                .epsilon = kEpsilon,
                                .kind = sizes_.head_norm,
                                .of_values = sizes_.value_norm,
                                .values_are_keys = sizes_.values_are_keys};
    cuda::rotary_store_kv(nullptr, qkv.get(), sizes_.head_count, rotary, norms, batch, bounds, shape_, kCacheLayer,
                          q.get());
    const cuda::AttentionSizes attention{.head_count = sizes_.head_count,
                                         .scale = 1.0f / std::sqrt(static_cast<float>(sizes_.head_dim)),
                                         .sliding_window = sizes_.sliding_window,
                                         .chunk_size = sizes_.chunk_size,
                                         .causal = sizes_.causal,
                                         .soft_cap = sizes_.soft_cap,
                                         .sinks = sizes_.sinks ? sinks_.get() : nullptr};
    const DeviceArray<uint8_t> workspace(cuda::attention_workspace_bytes(attention, shape_, bounds), 0xFF);
    cuda::attention(nullptr, q.get(), attention, batch, bounds, shape_, kCacheLayer, out.get(), workspace.get());
    return bf16_values(out.values());
  }
  /// Returns the key or value of a token in page 0, each code times its scale.
  Values decoded(bool value, size_t head, size_t token) const {
    const auto dim = static_cast<size_t>(shape_.head_dim);
    const auto stride = static_cast<size_t>(cuda::code_stride(shape_.head_dim));
    const auto count = static_cast<size_t>(cuda::kv_scale_count(shape_));
    const size_t tokens = static_cast<size_t>(shape_.kv_head_count) * static_cast<size_t>(shape_.page_size);
    const size_t index = head * static_cast<size_t>(shape_.page_size) + token;
    const uint8_t* const layer = pages_.get() + kCacheLayer * cuda::kv_layer_bytes(shape_);
    const uint8_t* const codes = layer + (value ? tokens * stride : 0) + index * stride;
    const auto* const scales = reinterpret_cast<const uint16_t*>(layer + 2 * tokens * stride + index * count * 4);
    Values values;
    for (size_t i = 0; i < dim; ++i) {
      const bool is_int8 = shape_.element == cuda::KvElement::kInt8;
      const size_t part = is_int8 ? i / cuda::kInt8ScaleChannels : 0;
      const float number = is_int8 ? static_cast<float>(static_cast<int8_t>(codes[i])) : tensor::kE4M3[codes[i]];
      values.push_back(number * tensor::BFloat16{scales[2 * part + (value ? 1 : 0)]}.to_float());
    }
    return values;
  }

 private:
  AttentionCase sizes_;
  cuda::DeviceKvCache shape_;
  DeviceArray<float> frequency_;
  DeviceArray<float> q_norm_;
  DeviceArray<float> k_norm_;
  DeviceArray<float> sinks_;
  DeviceArray<uint8_t> pages_;
};

/// Feeds chunk i of every sequence in step i and returns each sequence's outputs [length, heads·head_dim].
std::vector<Values> feed_device(const AttentionCase& sizes, const Weights& weights,
                                const std::vector<TestSequence>& sequences, uint64_t seed, int32_t slack = 0,
                                bool divides = true, cuda::KvElement element = cuda::KvElement::kBf16) {
  const int64_t q_width = int64_t{sizes.head_count} * sizes.head_dim;
  const int64_t qkv_width = int64_t{sizes.head_count + sizes.kv_head_count + sizes.value_head_count()} * sizes.head_dim;
  std::vector<uint32_t> free_pages;
  for (const TestSequence& sequence : sequences) {
    free_pages.resize(free_pages.size() + static_cast<size_t>(sequence.length / sizes.page_size + 1));
  }
  std::iota(free_pages.begin(), free_pages.end(), 0u);
  std::mt19937_64 engine(seed);
  std::shuffle(free_pages.begin(), free_pages.end(), engine);
  emulator::set_order_seed(seed);
  const Cache cache(sizes, weights, element, static_cast<int32_t>(free_pages.size()));
  std::vector<std::vector<uint32_t>> pages(sequences.size());
  std::vector<Values> outputs(sequences.size());
  std::vector<int32_t> fed(sequences.size(), 0);
  for (size_t step = 0;; ++step) {
    Cache::Batch batch;
    std::vector<size_t> members;
    for (size_t s = 0; s < sequences.size(); ++s) {
      if (step >= sequences[s].chunks.size()) continue;
      const int32_t rows = sequences[s].chunks[step];
      members.push_back(s);
      batch.prefix.push_back(fed[s]);
      batch.row_begin.push_back(batch.row_begin.back() + rows);
      const auto from = sequences[s].qkv.begin() + fed[s] * qkv_width;
      batch.qkv.insert(batch.qkv.end(), from, from + rows * qkv_width);
      fed[s] += rows;
      while (static_cast<int32_t>(pages[s].size()) * sizes.page_size < fed[s]) {
        pages[s].push_back(free_pages.back());
        free_pages.pop_back();
      }
      batch.pages.insert(batch.pages.end(), pages[s].begin(), pages[s].end());
      batch.page_begin.push_back(static_cast<int32_t>(batch.pages.size()));
    }
    if (members.empty()) return outputs;
    const Values result = cache.step(batch, slack, divides);
    for (size_t m = 0; m < members.size(); ++m) {
      outputs[members[m]].insert(outputs[members[m]].end(), result.begin() + batch.row_begin[m] * q_width,
                                 result.begin() + batch.row_begin[m + 1] * q_width);
    }
  }
}

bool same_outputs(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("CUDA rotary_store_kv and attention agree with the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 130);
  const AttentionCase cases[] = {
      {},
      {.head_count = 14, .kv_head_count = 2, .page_size = 64},
      {.head_count = 4, .kv_head_count = 4, .head_dim = 32, .rotary_dim = 16, .page_size = 1},
      {.head_count = 6, .kv_head_count = 1, .head_dim = 24, .rotary_dim = 24, .sliding_window = 5, .page_size = 7},
      {.head_count = 2, .kv_head_count = 1, .head_dim = 80, .rotary_dim = 40, .attention_factor = 1.3f},
      {.head_count = 2, .kv_head_count = 2, .head_dim = 128, .rotary_dim = 128, .page_size = 32, .norms = true},
      {.head_count = 1, .kv_head_count = 1, .head_dim = 256, .rotary_dim = 64, .sliding_window = 70, .norms = true},
      {.head_count = 35, .kv_head_count = 1, .head_dim = 33, .rotary_dim = 30, .page_size = 8},
      {.head_count = 3, .kv_head_count = 3, .head_dim = 100, .rotary_dim = 100, .page_size = 16},
      {.head_count = 5, .kv_head_count = 1, .head_dim = 96, .rotary_dim = 96, .page_size = 16},
      {.head_count = 4, .kv_head_count = 2, .head_dim = 32, .rotary_dim = 32, .soft_cap = 2.0f},
      {.head_count = 6, .kv_head_count = 1, .head_dim = 24, .rotary_dim = 24, .sliding_window = 9, .soft_cap = 0.5f},
      kLayerNormOfHeads,
      kNormAfterRotation,
      {.head_count = 14, .kv_head_count = 2, .sliding_window = 20, .sinks = true},
      {.head_count = 4, .kv_head_count = 2, .head_dim = 80, .rotary_dim = 40, .page_size = 7, .sinks = true},
      {.head_count = 4, .kv_head_count = 2, .query_beta = 0.3f, .query_period = 16, .query_offset = 1},
      {.head_count = 4, .kv_head_count = 2, .head_dim = 32, .rotary_dim = 32, .page_size = 7, .chunk_size = 64},
      {.head_count = 4, .kv_head_count = 2, .head_dim = 24, .rotary_dim = 24, .norms = true, .value_norm = true},
      {.head_count = 6, .kv_head_count = 2, .head_dim = 48, .rotary_dim = 48, .norms = true, .values_are_keys = true},
      {.head_count = 5,
       .kv_head_count = 1,
       .head_dim = 512,
       .rotary_dim = 512,
       .norms = true,
       .value_norm = true,
       .values_are_keys = true},
      {.head_count = 2, .kv_head_count = 2, .head_dim = 301, .rotary_dim = 300, .sliding_window = 33},
  };
  for (const AttentionCase& sizes : cases) {
    INFO(sizes.to_string());
    const Weights weights = random_weights(random, sizes);
    std::vector<TestSequence> sequences;
    for (const bool one_by_one : {false, true, false}) {
      const auto length = static_cast<int32_t>(random.integer(1, one_by_one ? 40 : 110));
      sequences.push_back(random_sequence(random, sizes, length, one_by_one));
    }
    const auto got = feed_device(sizes, weights, sequences, test_seed());
    for (size_t s = 0; s < sequences.size(); ++s) {
      INFO("sequence " << s << " of " << sequences[s].length);
      check_close(got[s], expected_outputs(sizes, weights, sequences[s], tensor::DType::kBF16), 0x1p-8, 0.02);
    }
  }
}

TEST_CASE("CUDA attention over KV splits has the bits of any chunking") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 131);
  const AttentionCase cases[] = {
      {.head_count = 4, .kv_head_count = 1, .head_dim = 64, .rotary_dim = 64},
      {.head_count = 2, .kv_head_count = 2, .head_dim = 24, .rotary_dim = 24, .sliding_window = 290, .page_size = 5},
      {.head_count = 17, .kv_head_count = 1, .head_dim = 128, .rotary_dim = 64, .page_size = 48},
      {.head_count = 2, .kv_head_count = 1, .head_dim = 32, .rotary_dim = 32, .soft_cap = 3.0f, .sinks = true},
      {.head_count = 4, .kv_head_count = 2, .head_dim = 16, .rotary_dim = 16, .page_size = 5, .chunk_size = 192},
      {.head_count = 2, .kv_head_count = 1, .head_dim = 272, .rotary_dim = 64, .page_size = 48, .value_norm = true},
  };
  for (const AttentionCase& sizes : cases) {
    INFO(sizes.to_string());
    const Weights weights = random_weights(random, sizes);
    const auto splits = sizes.head_count > 8 || sizes.head_dim > 256 ? 1 : 2;
    const auto length = static_cast<int32_t>(256 * splits + random.integer(20, 50));
    TestSequence sequence = random_sequence(random, sizes, length, false);
    sequence.chunks = {length};
    const Values whole = feed_device(sizes, weights, {sequence}, 1)[0];
    check_close(whole, expected_outputs(sizes, weights, sequence, tensor::DType::kBF16), 0x1p-8, 0.02);
    // A long chunk, then one by one, as decoding does it, with short chunks between.
    sequence.chunks = {length - 60, 1, 1, 1, 1, 1, 17, 3};
    sequence.chunks.insert(sequence.chunks.end(), 35, 1);
    const TestSequence other = random_sequence(random, sizes, 30, true);
    const auto slack = static_cast<int32_t>(random.integer(0, 3));
    INFO("bounds beyond by " << slack);
    const auto got = feed_device(sizes, weights, {other, sequence, other}, test_seed() + 1, slack);
    REQUIRE(same_outputs(got[1], whole));
    REQUIRE(same_outputs(got[0], got[2]));
    const auto walked = feed_device(sizes, weights, {sequence, other}, test_seed(), slack, false);
    REQUIRE((same_outputs(walked[0], whole) && same_outputs(walked[1], got[0])));
  }
}

TEST_CASE("CUDA attention in both directions agrees with the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 135);
  const AttentionCase sizes{.head_count = 4, .kv_head_count = 2, .head_dim = 32, .rotary_dim = 32, .causal = false};
  const Weights weights = random_weights(random, sizes);
  std::vector<TestSequence> sequences;
  for (const int32_t length : {1, 3, 16, 70, 300}) {
    sequences.push_back(random_sequence(random, sizes, length, false));
    sequences.back().chunks = {length};
  }
  const auto got = feed_device(sizes, weights, sequences, test_seed());
  for (size_t s = 0; s < sequences.size(); ++s) {
    INFO("sequence " << s << " of " << sequences[s].length);
    check_close(got[s], expected_outputs(sizes, weights, sequences[s], tensor::DType::kBF16), 0x1p-8, 0.02);
    REQUIRE(same_outputs(feed_device(sizes, weights, {sequences[s]}, 1)[0], got[s]));
    REQUIRE(same_outputs(feed_device(sizes, weights, {sequences[s]}, 1, 0, false)[0], got[s]));
  }
}

TEST_CASE("CUDA attention splits keys of sequences of many lengths") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 134);
  const AttentionCase sizes{.head_count = 2, .kv_head_count = 1, .head_dim = 16, .rotary_dim = 16};
  const Weights weights = random_weights(random, sizes);
  // There are more sequences than a warp's lanes read together; all but a few have one split.
  std::vector<TestSequence> sequences;
  for (int32_t s = 0; s < 70; ++s) {
    const bool is_long = s % 23 == 11;
    const auto length = static_cast<int32_t>(is_long ? 700 + random.integer(0, 300) : random.integer(2, 40));
    TestSequence sequence = random_sequence(random, sizes, length, false);
    const auto last = static_cast<int32_t>(random.integer(1, std::min(length - 1, 20)));
    sequence.chunks = {length - last, last};
    sequences.push_back(std::move(sequence));
  }
  const auto together = feed_device(sizes, weights, sequences, test_seed());
  for (size_t s = 5; s < sequences.size(); s += 6) {  // 11 is one of the long ones
    CAPTURE(s, sequences[s].length);
    TestSequence alone = sequences[s];
    alone.chunks = {alone.length};
    REQUIRE(same_outputs(feed_device(sizes, weights, {alone}, test_seed(), 0, false)[0], together[s]));
  }
}

TEST_CASE("one long context costs only its own partial results") {
  const cuda::AttentionSizes sizes{32, 1.0f, 0};
  const cuda::DeviceKvCache cache{.layer_count = 1, .kv_head_count = 8, .head_dim = 128, .page_size = 16};
  constexpr int32_t kSequences = 128;
  const int32_t splits = kSequences * cuda::splits_of(1, 2000) + cuda::splits_of(1, 128 << 10);
  const size_t bytes = cuda::attention_workspace_bytes(
      sizes, cache, {.rows = kSequences, .sequences = kSequences, .sequence_rows = 1, .splits = splits});
  REQUIRE(bytes == size_t{1536} * 32 * (128 + 2) * sizeof(float));
}

TEST_CASE("CUDA attention by token has the bits of the whole prompt") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 132);
  AttentionCase sizes{.head_count = 6, .kv_head_count = 2, .head_dim = 80, .rotary_dim = 40, .sliding_window = 33};
  const Weights weights = random_weights(random, sizes);
  TestSequence sequence = random_sequence(random, sizes, 90, false);
  sequence.chunks = {90};
  const Values whole = feed_device(sizes, weights, {sequence}, 1)[0];
  for (const int32_t page_size : {1, 7, 16, 64}) {
    INFO("pages of " << page_size);
    sizes.page_size = page_size;
    sequence.chunks.assign(90, 1);
    REQUIRE(same_outputs(feed_device(sizes, weights, {sequence}, test_seed())[0], whole));
  }
}

TEST_CASE("a NaN position spoils only the rows that see it") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 133);
  const AttentionCase sizes{.head_count = 2, .kv_head_count = 1, .head_dim = 64, .rotary_dim = 64};
  const Weights weights = random_weights(random, sizes);
  TestSequence healthy = random_sequence(random, sizes, 50, false);
  TestSequence spoilt = healthy;
  constexpr size_t kPosition = 21;
  constexpr size_t kWidth = 4 * 64;
  spoilt.qkv[kPosition * kWidth + 3 * 64 + 5] = std::numeric_limits<float>::infinity();  // a channel of its value
  const auto got = feed_device(sizes, weights, {healthy, spoilt}, test_seed());
  for (size_t i = 0; i < got[0].size(); ++i) {
    INFO("element " << i);
    REQUIRE(std::isfinite(got[0][i]));
    REQUIRE(std::isfinite(got[1][i]) == (i / 128 < kPosition));
    if (i / 128 < kPosition) REQUIRE(got[1][i] == got[0][i]);
  }
}

TEST_CASE("CUDA attention over 8-bit codes agrees with the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 135);
  const AttentionCase cases[] = {
      {.head_count = 14, .kv_head_count = 2, .page_size = 64},
      {.head_count = 4, .kv_head_count = 4, .head_dim = 32, .rotary_dim = 16, .page_size = 1},
      {.head_count = 6, .kv_head_count = 1, .head_dim = 24, .rotary_dim = 24, .sliding_window = 5, .page_size = 7},
      {.head_count = 2, .kv_head_count = 1, .head_dim = 80, .rotary_dim = 40, .attention_factor = 1.3f},
      {.head_count = 2, .kv_head_count = 2, .head_dim = 128, .rotary_dim = 128, .page_size = 32, .norms = true},
      {.head_count = 1, .kv_head_count = 1, .head_dim = 256, .rotary_dim = 64, .sliding_window = 70, .norms = true},
      {.head_count = 35, .kv_head_count = 1, .head_dim = 33, .rotary_dim = 30, .page_size = 8},
      {.head_count = 5, .kv_head_count = 1, .head_dim = 96, .rotary_dim = 96, .page_size = 16},
      {.head_count = 4, .kv_head_count = 2, .head_dim = 40, .rotary_dim = 40, .value_norm = true, .chunk_size = 64},
      {.head_count = 2,
       .kv_head_count = 1,
       .head_dim = 328,
       .rotary_dim = 328,
       .norms = true,
       .value_norm = true,
       .values_are_keys = true},
  };
  for (const AttentionCase& sizes : cases) {
    const Weights weights = random_weights(random, sizes);
    std::vector<TestSequence> sequences;
    for (const bool one_by_one : {false, true}) {
      const auto length = static_cast<int32_t>(random.integer(1, one_by_one ? 40 : 110));
      sequences.push_back(random_sequence(random, sizes, length, one_by_one));
    }
    for (const auto& [element, stored, error] : {std::tuple{cuda::KvElement::kInt8, tensor::KvDType::kInt8, 0.03},
                                                 std::tuple{cuda::KvElement::kE4M3, tensor::KvDType::kFp8E4M3, 0.06}}) {
      INFO(sizes.to_string() << ", " << enum_name(stored));
      const auto got = feed_device(sizes, weights, sequences, test_seed(), 0, true, element);
      for (size_t s = 0; s < sequences.size(); ++s) {
        INFO("sequence " << s << " of " << sequences[s].length);
        check_close(got[s], expected_outputs(sizes, weights, sequences[s], tensor::DType::kBF16, stored), 0x1p-8,
                    error);
      }
    }
  }
}

TEST_CASE("CUDA attention over codes has the bits of any chunking") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 136);
  AttentionCase sizes{.head_count = 6, .kv_head_count = 2, .head_dim = 80, .rotary_dim = 40, .sliding_window = 270};
  const Weights weights = random_weights(random, sizes);
  TestSequence sequence = random_sequence(random, sizes, 300, false);
  const TestSequence other = random_sequence(random, sizes, 30, true);
  for (const cuda::KvElement element : kCodes) {
    sizes.page_size = 16;
    sequence.chunks = {300};
    const Values whole = feed_device(sizes, weights, {sequence}, 1, 0, true, element)[0];
    for (const int32_t page_size : {1, 7, 64}) {
      INFO("pages of " << page_size);
      sizes.page_size = page_size;
      sequence.chunks = {240, 1, 1, 17, 3};
      sequence.chunks.insert(sequence.chunks.end(), 38, 1);
      const auto got = feed_device(sizes, weights, {other, sequence, other}, test_seed(), 2, true, element);
      REQUIRE(same_outputs(got[1], whole));
      REQUIRE(same_outputs(got[0], got[2]));
    }
  }
}

TEST_CASE("CUDA attention over codes of all widths has equal bits") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 138);
  for (const int32_t dim : {16, 33, 64, 96, 124, 128, 192, 256, 320, 512}) {
    const AttentionCase sizes{.head_count = 3, .kv_head_count = 1, .head_dim = dim, .rotary_dim = 16, .page_size = 9};
    const Weights weights = random_weights(random, sizes);
    TestSequence sequence = random_sequence(random, sizes, 70, false);
    for (const cuda::KvElement element : kCodes) {
      INFO("heads of " << dim << " channels");
      sequence.chunks = {70};
      const Values whole = feed_device(sizes, weights, {sequence}, 1, 0, false, element)[0];
      sequence.chunks = {66, 1, 2, 1};
      REQUIRE(same_outputs(feed_device(sizes, weights, {sequence}, test_seed(), 0, true, element)[0], whole));
    }
  }
}

TEST_CASE("CUDA pages hold the codes and scales of the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 138);
  const AttentionCase sizes{.head_count = 2, .kv_head_count = 2, .head_dim = 72, .rotary_dim = 0, .page_size = 4};
  const Weights weights = random_weights(random, sizes);
  constexpr size_t kTokens = 4;
  constexpr size_t kWidth = 6 * 72;
  Cache::Batch batch{.row_begin = {0, 4}, .prefix = {0}, .page_begin = {0, 1}, .pages = {0}, .qkv = {}};
  batch.qkv = random.normal(kTokens * kWidth, 5.0f);
  batch.qkv[3 * kWidth + 2 * 72] = 4e-38f;
  for (const auto& [element, stored] : {std::pair{cuda::KvElement::kInt8, tensor::KvDType::kInt8},
                                        std::pair{cuda::KvElement::kE4M3, tensor::KvDType::kFp8E4M3}}) {
    const Cache cache(sizes, weights, element, 1);
    (void)cache.step(batch, 0, true);
    for (size_t token = 0; token < kTokens; ++token) {
      for (size_t head = 0; head < 4; ++head) {  // of keys, then of values
        const auto from = batch.qkv.begin() + static_cast<std::ptrdiff_t>(token * kWidth + (2 + head) * 72);
        const Values wanted = reference::rounded_to_kv(Values(from, from + 72), 72, stored);
        INFO(enum_name(stored) << ", token " << token << ", head " << head);
        REQUIRE(cache.decoded(head / 2 == 1, head % 2, token) == wanted);
      }
    }
  }
}

TEST_CASE("a fault among codes spoils only the rows that see it") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 137);
  const AttentionCase sizes{.head_count = 2, .kv_head_count = 1, .head_dim = 72, .rotary_dim = 0, .page_size = 64};
  const Weights weights = random_weights(random, sizes);
  TestSequence healthy = random_sequence(random, sizes, 50, false);
  constexpr size_t kPosition = 21;
  constexpr size_t kWidth = 4 * 72;
  for (const auto& [element, stored] : {std::pair{cuda::KvElement::kInt8, tensor::KvDType::kInt8},
                                        std::pair{cuda::KvElement::kE4M3, tensor::KvDType::kFp8E4M3}}) {
    for (const float value : {std::numeric_limits<float>::infinity(), std::nanf(""), -2e38f}) {
      for (const size_t channel : {size_t{2 * 72 + 5}, size_t{3 * 72 + 71}}) {  // of the key, of the value
        TestSequence spoilt = healthy;
        spoilt.qkv[kPosition * kWidth + channel] = value;
        const auto got = feed_device(sizes, weights, {healthy, spoilt}, test_seed(), 0, true, element);
        for (size_t i = 0; i < got[0].size(); ++i) {
          INFO(enum_name(stored) << ", " << value << " at " << channel << ", element " << i);
          REQUIRE(std::isfinite(got[0][i]));
          REQUIRE(std::isfinite(got[1][i]) == (i / 144 < kPosition));
          if (i / 144 < kPosition) REQUIRE(got[1][i] == got[0][i]);
        }
      }
    }
  }
}

TEST_CASE("attention says which heads it cannot do") {
  const cuda::DeviceKvCache cache{.layer_count = 1, .kv_head_count = 2, .head_dim = 520, .page_size = 16};
  REQUIRE_THROWS_WITH(cuda::attention(nullptr, nullptr, {4, 1.0f, 0}, {}, {1, 1, 1, 0}, cache, 0, nullptr, nullptr),
                      "attention: found 4 heads over 2 of 520 channels, wanted a multiple and at most 512 channels");
}
