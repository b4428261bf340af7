#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "conformance/sequences.h"
#include "support/effort.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;
using tensor::LatentShape;

namespace {

constexpr float kEpsilon = 1e-6f;
constexpr int32_t kLayers = 3;
constexpr int32_t kLayer = 1;

struct LatentCase {
  LatentShape shape;
  int32_t page_size = 16;
  [[nodiscard]] std::string to_string() const {
    return fmt::format("{} heads of {}+{} and {}, latents of {}, page {}", shape.head_count, shape.nope_dim,
                       shape.rope_dim, shape.value_dim, shape.latent_dim, page_size);
  }
};

LatentShape shape_of(int32_t heads, int32_t nope, int32_t rope, int32_t value, int32_t latent) {
  return {.head_count = heads,
          .nope_dim = nope,
          .rope_dim = rope,
          .value_dim = value,
          .latent_dim = latent,
          .scale = 1.0f / std::sqrt(static_cast<float>(nope + rope))};
}

struct LatentWeights {
  Values inverse_frequency;  // [rope_dim / 2]
  Values norm;               // [latent_dim]
  Values kv_b;               // [heads·(nope_dim + value_dim), latent_dim]
};

LatentWeights random_latent_weights(Random& random, const LatentShape& shape) {
  LatentWeights weights;
  for (int32_t i = 0; i < shape.rope_dim / 2; ++i)
    weights.inverse_frequency.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / shape.rope_dim)));
  weights.norm = random.normal(shape.latent_dim);
  weights.kv_b = random.normal(int64_t{shape.head_count} * (shape.nope_dim + shape.value_dim) * shape.latent_dim,
                               1.0f / std::sqrt(static_cast<float>(shape.latent_dim)));
  return weights;
}

/// The tokens of one sequence before norm and rotation, and the chunks in which they are fed.
struct LatentSequence {
  int32_t length = 0;
  Values q;   // [length, heads·(nope_dim + rope_dim)]
  Values kv;  // [length, latent_dim + rope_dim]
  std::vector<int32_t> chunks;
};

LatentSequence random_latents(Random& random, const LatentShape& shape, int32_t length) {
  return {.length = length,
          .q = random.normal(length * shape.query_width()),
          .kv = random.normal(int64_t{length} * shape.key_dim()),
          .chunks = {length}};
}

/// A cache of latents and the two ops that use it.
class LatentFeeder {
 public:
  LatentFeeder(tensor::Backend& backend, const LatentCase& sizes, const LatentWeights& weights, int32_t page_count)
      : backend_(backend),
        shape_(sizes.shape),
        cache_(backend.make_kv_cache({.layer_count = kLayers,
                                      .kv_head_count = 1,
                                      .head_dim = shape_.key_dim(),
                                      .page_size = sizes.page_size,
                                      .page_count = page_count,
                                      .latent_dim = shape_.latent_dim})),
        frequencies_(backend.make_vector(weights.inverse_frequency)),
        norm_(backend.make_vector(weights.norm)) {
    const HostMatrix kv_b(weights.kv_b, backend.compute_dtype(),
                          int64_t{shape_.head_count} * (shape_.nope_dim + shape_.value_dim), shape_.latent_dim);
    expansion_ = backend.pack_latent_expansion(kv_b.tensor(), shape_);
  }

  /// Stores a batch, and returns its attention [rows, heads·value_dim].
  Values run(const tensor::BatchLayout& batch, const Values& q, const Values& kv) {
    const tensor::RotaryTable rotary{frequencies_.get(), shape_.rope_dim, 1.0f};
    const int64_t rows = batch.row_count();
    Values result;
    backend_.run_and_wait([&] {
      const DeviceMatrix latents = make_matrix(backend_, DType::kF32, rows, shape_.key_dim());
      const DeviceMatrix queries = make_matrix(backend_, DType::kF32, rows, shape_.query_width());
      const DeviceMatrix out = make_matrix(backend_, backend_.compute_dtype(), rows, shape_.output_width());
      upload(backend_, kv, latents);
      upload(backend_, q, queries);
      const tensor::UploadedBatch uploaded = backend_.upload(batch);
      backend_.store_latent(latents.matrix, shape_, rotary, *norm_, kEpsilon, uploaded, *cache_, kLayer);
      backend_.latent_attention(queries.matrix, shape_, rotary, *expansion_, uploaded, *cache_, kLayer, out.matrix);
      result = download(backend_, out.matrix);
    });
    return result;
  }

 private:
  tensor::Backend& backend_;
  const LatentShape shape_;
  std::unique_ptr<tensor::KvCache> cache_;
  std::unique_ptr<tensor::DeviceVector> frequencies_;
  std::unique_ptr<tensor::DeviceVector> norm_;
  std::unique_ptr<tensor::LatentExpansion> expansion_;
};

/// Feeds chunk i of every sequence in step i and returns each sequence's outputs [length, heads·value_dim]. A sequence
/// whose chunks are at an end stays in the batch without rows.
std::vector<Values> feed_latents(tensor::Backend& backend, const LatentCase& sizes, const LatentWeights& weights,
                                 const std::vector<LatentSequence>& sequences, uint64_t page_seed) {
  std::vector<int32_t> lengths;
  size_t steps = 0;
  for (const LatentSequence& sequence : sequences) {
    lengths.push_back(sequence.length);
    steps = std::max(steps, sequence.chunks.size());
  }
  const auto [pages, page_count] = shuffled_pages(sizes.page_size, lengths, page_seed);
  LatentFeeder feeder(backend, sizes, weights, page_count);
  std::vector<Values> outputs(sequences.size());
  std::vector<int32_t> fed(sequences.size(), 0);
  for (size_t step = 0; step < steps; ++step) {
    std::vector<int32_t> row_begin = {0};
    std::vector<int32_t> page_begin = {0};
    std::vector<PageId> page_table;
    const std::vector<int32_t> prefix = fed;
    Values q;
    Values kv;
    for (size_t s = 0; s < sequences.size(); ++s) {
      const int32_t rows = step < sequences[s].chunks.size() ? sequences[s].chunks[step] : 0;
      const auto append = [&](Values& to, const Values& from, int64_t width) {
        to.insert(to.end(), from.begin() + fed[s] * width, from.begin() + (fed[s] + rows) * width);
      };
      append(q, sequences[s].q, sizes.shape.query_width());
      append(kv, sequences[s].kv, sizes.shape.key_dim());
      fed[s] += rows;
      row_begin.push_back(row_begin.back() + rows);
      page_table.insert(page_table.end(), pages[s].begin(), pages[s].end());
      page_begin.push_back(static_cast<int32_t>(page_table.size()));
    }
    const Values result =
        feeder.run({.row_begin = row_begin, .prefix = prefix, .page_begin = page_begin, .pages = page_table}, q, kv);
    const int64_t width = sizes.shape.output_width();
    for (size_t s = 0; s < sequences.size(); ++s)
      outputs[s].insert(outputs[s].end(), result.begin() + row_begin[s] * width,
                        result.begin() + row_begin[s + 1] * width);
  }
  return outputs;
}

Values expected_outputs(const LatentCase& sizes, const LatentWeights& weights, const LatentSequence& sequence,
                        DType dtype) {
  const LatentShape& shape = sizes.shape;
  const auto latent_dim = static_cast<size_t>(shape.latent_dim);
  const auto key_dim = static_cast<size_t>(shape.key_dim());
  const auto head_dim = static_cast<size_t>(shape.nope_dim + shape.rope_dim);
  const Values kv_b = reference::rounded(weights.kv_b, dtype);
  reference::LatentHistory history;
  Values outputs;
  for (int32_t position = 0; position < sequence.length; ++position) {
    const auto* const kv = sequence.kv.data() + static_cast<size_t>(position) * key_dim;
    const Values latent = reference::rms_norm(Values(kv, kv + latent_dim), weights.norm, double{kEpsilon});
    Values key(kv + latent_dim, kv + key_dim);
    reference::rotate(key, weights.inverse_frequency, 1.0f, position);
    for (const float x : reference::rounded(latent, dtype)) history.latents.push_back(x);
    for (const float x : reference::rounded(key, dtype)) history.keys.push_back(x);
    const auto* const q = sequence.q.data() + position * shape.query_width();
    Values query(q, q + shape.query_width());
    for (size_t head = 0; head < query.size(); head += head_dim) {
      reference::rotate(
          std::span(query).subspan(head + static_cast<size_t>(shape.nope_dim), static_cast<size_t>(shape.rope_dim)),
          weights.inverse_frequency, 1.0f, position);
    }
    const Values out = reference::latent_attention(reference::rounded(query, dtype), position, history, kv_b, shape);
    outputs.insert(outputs.end(), out.begin(), out.end());
  }
  return outputs;
}

/// Returns whether the backends are emulated thread by thread, where long cases would take minutes: such programs run
/// with less effort.
bool is_emulated() {
  return repetitions(100) < 100;
}

/// Calls body(backend, case) for each backend that computes latent attention.
template <class Body>
void for_each_backend(const Body& body) {
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kLatentAttention)) continue;
    INFO(backend_case.name);
    body(*backend);
  }
}

}  // namespace

TEST_CASE("latent attention agrees with the expanded reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 50);
  struct Sized {
    LatentCase sizes;
    int32_t length;
  };
  for (const auto& [sizes, length] :
       {Sized{{shape_of(4, 32, 16, 24, 32), 16}, 90}, Sized{{shape_of(16, 24, 8, 40, 72), 7}, 50},
        Sized{{shape_of(20, 16, 16, 16, 72), 16}, 70}, Sized{{shape_of(70, 16, 16, 16, 64), 64}, 40},
        Sized{{shape_of(2, 192, 64, 256, 512), 1}, 20}}) {
    const LatentWeights weights = random_latent_weights(random, sizes.shape);
    std::vector<LatentSequence> sequences = {random_latents(random, sizes.shape, length),
                                             random_latents(random, sizes.shape, length / 2 + 1)};
    for (LatentSequence& sequence : sequences) sequence.chunks = random_chunks(random, sequence.length, false);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      std::vector<Values> wanted;
      for (const LatentSequence& sequence : sequences)
        wanted.push_back(expected_outputs(sizes, weights, sequence, dtype));
      for_each_backend([&](tensor::Backend& backend) {
        if (backend.compute_dtype() != dtype) return;
        INFO(sizes.to_string());
        const auto got = feed_latents(backend, sizes, weights, sequences, test_seed());
        for (size_t s = 0; s < sequences.size(); ++s)
          check_close(got[s], wanted[s], unit(dtype), dtype == DType::kBF16 ? 0.03 : 2e-5);
      });
    }
  }
}

TEST_CASE("latent attention does not depend on chunks pages or company") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 51);
  for (const LatentShape& shape :
       {shape_of(4, 32, 16, 24, 32), shape_of(20, 16, 8, 16, 72), shape_of(50, 16, 8, 16, 72)}) {
    const LatentWeights weights = random_latent_weights(random, shape);
    const LatentSequence sequence = random_latents(random, shape, static_cast<int32_t>(random.integer(60, 150)));
    LatentSequence other = random_latents(random, shape, 50);
    other.chunks = random_chunks(random, other.length, false);
    for_each_backend([&](tensor::Backend& backend) {
      const Values whole = feed_latents(backend, {shape, 16}, weights, {sequence}, 1)[0];
      for (const int32_t page_size : {1, 16, 64, 7}) {
        LatentSequence same = sequence;
        same.chunks = random_chunks(random, same.length, page_size == 1);
        INFO(shape.head_count << " heads, pages of " << page_size << ", " << same.chunks.size() << " chunks");
        const auto got = feed_latents(backend, {shape, page_size}, weights, {other, same, other}, test_seed());
        REQUIRE(got[1] == whole);
        REQUIRE(got[0] == got[2]);
      }
    });
  }
}

TEST_CASE("latent attention does not depend on cuts of a long context") {
  if (is_emulated()) return;
  INFO("seed " << test_seed());
  Random random(test_seed() + 52);
  const LatentShape shape = shape_of(5, 16, 8, 16, 32);
  const LatentWeights weights = random_latent_weights(random, shape);
  LatentSequence sequence = random_latents(random, shape, 2250);
  for_each_backend([&](tensor::Backend& backend) {
    sequence.chunks = {2250};
    const Values whole = feed_latents(backend, {shape, 64}, weights, {sequence}, 1)[0];
    sequence.chunks = {2040, 1, 1, 1, 1, 1, 1, 1, 1, 1, 90, 1, 110};
    REQUIRE(std::accumulate(sequence.chunks.begin(), sequence.chunks.end(), 0) == sequence.length);
    REQUIRE(feed_latents(backend, {shape, 64}, weights, {sequence}, test_seed())[0] == whole);
  });
}

TEST_CASE("latent attention computes large batches slice by slice") {
  if (is_emulated()) return;
  INFO("seed " << test_seed());
  Random random(test_seed() + 53);
  const LatentShape shape = shape_of(128, 8, 64, 8, 512);  // 64 MiB of queries and results are 120 to 240 rows
  const LatentWeights weights = random_latent_weights(random, shape);
  LatentSequence first = random_latents(random, shape, 10);
  LatentSequence sequence = random_latents(random, shape, 260);
  const BackendCase fastest = backend_cases().back();
  const auto backend = fastest.make();
  if (!backend->computes(tensor::Feature::kLatentAttention)) return;
  const Values whole = feed_latents(*backend, {shape, 64}, weights, {first, sequence, first}, 1)[1];
  first.chunks = {5, 5};
  sequence.chunks = {100, 100, 59, 1};
  REQUIRE(feed_latents(*backend, {shape, 64}, weights, {first, sequence}, 2)[1] == whole);
}

TEST_CASE("NaN and overflow in a latent spoil only the rows that see it") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 54);
  const LatentShape shape = shape_of(3, 16, 8, 16, 32);
  const auto width = static_cast<size_t>(shape.output_width());
  constexpr size_t kPosition = 21;
  const LatentWeights weights = random_latent_weights(random, shape);
  const LatentSequence healthy = random_latents(random, shape, 50);
  for_each_backend([&](tensor::Backend& backend) {
    // Channel 5 is the latent's, 34 the key's. An infinite key may also have a weight of zero.
    for (const size_t channel : {size_t{5}, size_t{34}}) {
      for (const float value : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
        if (channel == 34 && !std::isnan(value)) continue;
        INFO("channel " << channel << ": " << value);
        LatentSequence spoilt = healthy;
        spoilt.kv[kPosition * static_cast<size_t>(shape.key_dim()) + channel] = value;
        const auto got = feed_latents(backend, {shape, 16}, weights, {healthy, spoilt, healthy}, test_seed());
        REQUIRE(got[0] == got[2]);
        for (size_t i = 0; i < got[0].size(); ++i) {
          REQUIRE(std::isfinite(got[0][i]));
          if (i / width < kPosition) REQUIRE(got[1][i] == got[0][i]);
          if (i / width >= kPosition) REQUIRE(!std::isfinite(got[1][i]));
        }
      }
    }
  });
}

TEST_CASE("a page of latents stores each latent once") {
  for_each_backend([](tensor::Backend& backend) {
    const tensor::KvCacheShape shape{
        .layer_count = 3, .kv_head_count = 1, .head_dim = 576, .page_size = 16, .page_count = 5, .latent_dim = 512};
    REQUIRE(backend.make_kv_cache(shape)->page_bytes() == backend.kv_page_bytes(shape));
    REQUIRE(backend.kv_page_bytes(shape) == size_t{3} * 16 * 576 * tensor::size_of(backend.compute_dtype()));
  });
}
