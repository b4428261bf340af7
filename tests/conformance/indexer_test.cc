#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "conformance/latent_sequences.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;
using tensor::IndexerShape;
using tensor::LatentShape;

namespace {

constexpr float kIndexEpsilon = 1e-6f;
constexpr int32_t kIndexedLayers = 2;
constexpr int32_t kIndexedLayer = 1;

using Choice = std::vector<std::vector<int32_t>>;  // [rows][chosen]; empty of rows that see all

struct IndexedCase {
  IndexerShape indexer;
  LatentShape latents;
  int32_t page_size = 16;
};

IndexedCase case_of(int32_t heads, int32_t dim, int32_t chosen, int32_t page_size = 16) {
  return {
      .indexer = {.head_count = heads, .head_dim = dim, .rope_dim = 16, .chosen_count = chosen},
      .latents = {.head_count = 5, .nope_dim = 16, .rope_dim = 16, .value_dim = 24, .latent_dim = 40, .scale = 0.2f},
      .page_size = page_size};
}

/// The tokens of one sequence before norms and rotations, and the chunks in which they are fed.
struct IndexedSequence {
  int32_t length = 0;
  Values index_q;    // [length, heads·head_dim]
  Values index_key;  // [length, head_dim]
  Values weights;    // [length, heads]
  Values q;          // [length, heads·(nope_dim + rope_dim)]
  Values kv;         // [length, latent_dim + rope_dim]
  std::vector<int32_t> chunks;
};

IndexedSequence random_indexed(Random& random, const IndexedCase& sizes, int32_t length) {
  return {.length = length,
          .index_q = random.normal(length * sizes.indexer.query_width()),
          .index_key = random.normal(int64_t{length} * sizes.indexer.head_dim),
          .weights = random.normal(int64_t{length} * sizes.indexer.head_count),
          .q = random.normal(length * sizes.latents.query_width()),
          .kv = random.normal(int64_t{length} * sizes.latents.key_dim()),
          .chunks = {length}};
}

struct IndexedWeights {
  Values inverse_frequency;  // [rope_dim / 2]
  Values index_norm;         // [head_dim]
  Values index_norm_bias;    // [head_dim]
  Values latent_norm;        // [latent_dim]
  Values kv_b;               // [heads·(nope_dim + value_dim), latent_dim]
};

/// Draws weights. Without rotation a row's scores do not depend on its position.
IndexedWeights random_indexed_weights(Random& random, const IndexedCase& sizes, bool rotates) {
  const LatentShape& shape = sizes.latents;
  IndexedWeights weights;
  for (int32_t i = 0; i < shape.rope_dim / 2; ++i)
    weights.inverse_frequency.push_back(rotates ? std::pow(10000.0f, -2.0f * static_cast<float>(i) / 16.0f) : 0.0f);
  weights.index_norm = random.normal(sizes.indexer.head_dim);
  weights.index_norm_bias = random.normal(sizes.indexer.head_dim);
  weights.latent_norm = random.normal(shape.latent_dim);
  weights.kv_b =
      random.normal(int64_t{shape.head_count} * (shape.nope_dim + shape.value_dim) * shape.latent_dim, 0.15f);
  return weights;
}

/// What the ops give for one sequence.
struct IndexedOutput {
  Choice chosen;
  Values out;  // [length, heads·value_dim]
};

/// A cache of latents with an indexer's keys, and the ops that use it.
class IndexedFeeder {
 public:
  IndexedFeeder(tensor::Backend& backend, const IndexedCase& sizes, const IndexedWeights& weights)
      : backend_(backend), sizes_(sizes) {
    const LatentShape& shape = sizes.latents;
    const HostMatrix kv_b(weights.kv_b, backend.compute_dtype(),
                          int64_t{shape.head_count} * (shape.nope_dim + shape.value_dim), shape.latent_dim);
    expansion_ = backend.pack_latent_expansion(kv_b.tensor(), shape);
    frequencies_ = backend.make_vector(weights.inverse_frequency);
    index_norm_ = backend.make_vector(weights.index_norm);
    index_norm_bias_ = backend.make_vector(weights.index_norm_bias);
    latent_norm_ = backend.make_vector(weights.latent_norm);
  }

  /// Feeds chunk i of every sequence in step i.
  std::vector<IndexedOutput> feed(const std::vector<IndexedSequence>& sequences, uint64_t page_seed) {
    std::vector<int32_t> lengths;
    size_t steps = 0;
    for (const IndexedSequence& sequence : sequences) {
      lengths.push_back(sequence.length);
      steps = std::max(steps, sequence.chunks.size());
    }
    const auto [pages, page_count] = shuffled_pages(sizes_.page_size, lengths, page_seed);
    cache_ = backend_.make_kv_cache({.layer_count = kIndexedLayers,
                                     .kv_head_count = 1,
                                     .head_dim = sizes_.latents.key_dim(),
                                     .page_size = sizes_.page_size,
                                     .page_count = page_count,
                                     .latent_dim = sizes_.latents.latent_dim,
                                     .index_dim = sizes_.indexer.head_dim});
    std::vector<IndexedOutput> outputs(sequences.size());
    std::vector<int32_t> fed(sequences.size(), 0);
    for (size_t step = 0; step < steps; ++step) run_step(sequences, pages, step, fed, outputs);
    return outputs;
  }

 private:
  void run_step(const std::vector<IndexedSequence>& sequences, const std::vector<std::vector<PageId>>& pages,
                size_t step, std::vector<int32_t>& fed, std::vector<IndexedOutput>& outputs) {
    std::vector<int32_t> row_begin = {0};
    std::vector<int32_t> page_begin = {0};
    std::vector<PageId> page_table;
    const std::vector<int32_t> prefix = fed;
    IndexedSequence batch;
    for (size_t s = 0; s < sequences.size(); ++s) {
      const int32_t rows = step < sequences[s].chunks.size() ? sequences[s].chunks[step] : 0;
      for (Values IndexedSequence::* member : {&IndexedSequence::index_q, &IndexedSequence::index_key,
                                               &IndexedSequence::weights, &IndexedSequence::q, &IndexedSequence::kv}) {
        const Values& from = sequences[s].*member;
        const auto width = std::ssize(from) / sequences[s].length;
        (batch.*member)
            .insert((batch.*member).end(), from.begin() + fed[s] * width, from.begin() + (fed[s] + rows) * width);
      }
      fed[s] += rows;
      row_begin.push_back(row_begin.back() + rows);
      page_table.insert(page_table.end(), pages[s].begin(), pages[s].end());
      page_begin.push_back(static_cast<int32_t>(page_table.size()));
    }
    const auto [chosen, out] =
        run({.row_begin = row_begin, .prefix = prefix, .page_begin = page_begin, .pages = page_table}, batch);
    const int64_t width = sizes_.latents.output_width();
    const auto count = static_cast<size_t>(sizes_.indexer.chosen_count);
    for (size_t s = 0; s < sequences.size(); ++s) {
      outputs[s].out.insert(outputs[s].out.end(), out.begin() + row_begin[s] * width,
                            out.begin() + row_begin[s + 1] * width);
      for (int32_t row = row_begin[s]; row < row_begin[s + 1]; ++row) {
        const bool sees_all = prefix[s] + row - row_begin[s] < sizes_.indexer.chosen_count;
        const auto first = chosen.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(row) * count);
        outputs[s].chosen.emplace_back(first, sees_all ? first : first + sizes_.indexer.chosen_count);
      }
    }
  }

  std::pair<std::vector<int32_t>, Values> run(const tensor::BatchLayout& batch, const IndexedSequence& values) {
    const auto& [indexer, latents, page_size] = sizes_;
    const tensor::RotaryTable rotary{frequencies_.get(), latents.rope_dim, 1.0f};
    const int64_t rows = batch.row_count();
    std::vector<int32_t> chosen(static_cast<size_t>(rows * indexer.chosen_count), -1);
    Values result;
    backend_.run_and_wait([&] {
      const auto uploaded = [&](const Values& from, int64_t cols) {
        DeviceMatrix matrix = make_matrix(backend_, DType::kF32, rows, cols);
        upload(backend_, from, matrix);
        return matrix;
      };
      const DeviceMatrix key = uploaded(values.index_key, indexer.head_dim);
      const DeviceMatrix index_q = uploaded(values.index_q, indexer.query_width());
      const DeviceMatrix weights = uploaded(values.weights, indexer.head_count);
      const DeviceMatrix kv = uploaded(values.kv, latents.key_dim());
      const DeviceMatrix q = uploaded(values.q, latents.query_width());
      const DeviceMatrix out = make_matrix(backend_, backend_.compute_dtype(), rows, latents.output_width());
      const tensor::Buffer choice = backend_.allocate(chosen.size() * sizeof(int32_t));
      const tensor::IntMatrix own{
          .data = reinterpret_cast<int32_t*>(choice.data()), .rows = rows, .cols = indexer.chosen_count};
      const tensor::UploadedBatch layout = backend_.upload(batch);
      backend_.store_index_key(key.matrix, indexer, rotary, *index_norm_, *index_norm_bias_, kIndexEpsilon, layout,
                               *cache_, kIndexedLayer);
      backend_.store_latent(kv.matrix, latents, rotary, *latent_norm_, kIndexEpsilon, layout, *cache_, kIndexedLayer);
      backend_.choose_tokens(index_q.matrix, weights.matrix, indexer, rotary, layout, *cache_, kIndexedLayer, own);
      backend_.sparse_latent_attention(q.matrix, latents, rotary, *expansion_, own, layout, *cache_, kIndexedLayer,
                                       out.matrix);
      backend_.copy_to_host(own.data, std::as_writable_bytes(std::span(chosen)));
      result = download(backend_, out.matrix);
    });
    return {chosen, result};
  }

  tensor::Backend& backend_;
  const IndexedCase sizes_;
  std::unique_ptr<tensor::KvCache> cache_;
  std::unique_ptr<tensor::LatentExpansion> expansion_;
  std::unique_ptr<tensor::DeviceVector> frequencies_;
  std::unique_ptr<tensor::DeviceVector> index_norm_;
  std::unique_ptr<tensor::DeviceVector> index_norm_bias_;
  std::unique_ptr<tensor::DeviceVector> latent_norm_;
};

/// Returns rows [row, row + 1) of values with `width` columns.
Values row_of(const Values& values, int32_t row, int64_t width) {
  const auto first = values.begin() + row * width;
  return {first, first + width};
}

/// Returns the reference's scores of each position up to the row's own.
Values expected_scores(const IndexedCase& sizes, const IndexedWeights& weights, const IndexedSequence& sequence,
                       int32_t row, DType dtype) {
  const IndexerShape& shape = sizes.indexer;
  const auto rope = static_cast<size_t>(shape.rope_dim);
  const auto dim = static_cast<size_t>(shape.head_dim);
  Values keys;
  for (int32_t position = 0; position <= row; ++position) {
    Values key = reference::layer_norm(row_of(sequence.index_key, position, shape.head_dim), weights.index_norm,
                                       weights.index_norm_bias, double{kIndexEpsilon});
    reference::rotate(std::span(key).first(rope), weights.inverse_frequency, 1.0f, position);
    for (const float x : reference::rounded(key, dtype)) keys.push_back(x);
  }
  Values query = row_of(sequence.index_q, row, shape.query_width());
  for (size_t head = 0; head < query.size(); head += dim)
    reference::rotate(std::span(query).subspan(head, rope), weights.inverse_frequency, 1.0f, row);
  return reference::index_scores(reference::rounded(query, dtype), row_of(sequence.weights, row, shape.head_count),
                                 keys, shape.head_dim);
}

/// Returns a row's attention over chosen tokens, or over all up to its own.
Values expected_output(const IndexedCase& sizes, const IndexedWeights& weights, const IndexedSequence& sequence,
                       int32_t row, std::vector<int32_t> chosen, DType dtype,
                       tensor::KvDType stored = tensor::KvDType::kAuto) {
  const LatentShape& shape = sizes.latents;
  if (chosen.empty()) {
    chosen.resize(static_cast<size_t>(row) + 1);
    std::iota(chosen.begin(), chosen.end(), 0);
  }
  reference::LatentHistory history;
  for (const int32_t position : chosen) {
    const Values kv = row_of(sequence.kv, position, shape.key_dim());
    const Values latent = reference::rms_norm(Values(kv.begin(), kv.begin() + shape.latent_dim), weights.latent_norm,
                                              double{kIndexEpsilon});
    Values key(kv.begin() + shape.latent_dim, kv.end());
    reference::rotate(key, weights.inverse_frequency, 1.0f, position);
    for (const float x : stored_latent(latent, dtype, stored)) history.latents.push_back(x);
    for (const float x : reference::rounded(key, dtype)) history.keys.push_back(x);
  }
  Values query = row_of(sequence.q, row, shape.query_width());
  const auto head_dim = static_cast<size_t>(shape.nope_dim + shape.rope_dim);
  for (size_t head = 0; head < query.size(); head += head_dim)
    reference::rotate(std::span(query).subspan(head + static_cast<size_t>(shape.nope_dim), 16),
                      weights.inverse_frequency, 1.0f, row);
  return reference::latent_attention(reference::rounded(query, dtype), std::ssize(chosen) - 1, history,
                                     reference::rounded(weights.kv_b, dtype), shape);
}

/// Calls body(backend) for each backend that has indexers.
template <class Body>
void for_each_indexer(const Body& body) {
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kIndexers)) continue;
    INFO(backend_case.name);
    body(*backend);
  }
}

/// Checks that a choice is ascending, of positions up to the row's, and misses no score above those it has by more than
/// the rounding of scores.
void check_choice(const std::vector<int32_t>& chosen, const Values& scores, double tolerance) {
  std::vector<bool> is_chosen(scores.size(), false);
  float least = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < chosen.size(); ++i) {
    REQUIRE(chosen[i] >= 0);
    REQUIRE(chosen[i] < std::ssize(scores));
    if (i > 0) REQUIRE(chosen[i] > chosen[i - 1]);
    is_chosen[static_cast<size_t>(chosen[i])] = true;
    least = std::min(least, scores[static_cast<size_t>(chosen[i])]);
  }
  double size = 1.0;
  for (const float score : scores) size = std::max(size, std::abs(double{score}));
  for (size_t i = 0; i < scores.size(); ++i)
    if (!is_chosen[i]) REQUIRE(double{scores[i]} <= double{least} + tolerance * size);
}

}  // namespace

TEST_CASE("an indexer chooses the largest scores for attention") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 60);
  for (const auto& [sizes, length] : {std::pair{case_of(4, 32, 16), 90}, std::pair{case_of(32, 128, 20, 7), 60},
                                      std::pair{case_of(3, 40, 7, 64), 150}}) {
    const IndexedWeights weights = random_indexed_weights(random, sizes, true);
    std::vector<IndexedSequence> sequences = {random_indexed(random, sizes, length),
                                              random_indexed(random, sizes, length / 2 + 1)};
    for (IndexedSequence& sequence : sequences) sequence.chunks = random_chunks(random, sequence.length, false);
    for_each_indexer([&](tensor::Backend& backend) {
      const DType dtype = backend.compute_dtype();
      const bool is_bf16 = dtype == DType::kBF16;
      INFO(sizes.indexer.head_count << " heads of " << sizes.indexer.head_dim);
      const auto got = IndexedFeeder(backend, sizes, weights).feed(sequences, test_seed());
      for (size_t s = 0; s < sequences.size(); ++s) {
        for (int32_t row = 0; row < sequences[s].length; row += 1 + row / 8) {
          const std::vector<int32_t>& chosen = got[s].chosen[static_cast<size_t>(row)];
          REQUIRE(chosen.empty() == (row < sizes.indexer.chosen_count));
          if (!chosen.empty())
            check_choice(chosen, expected_scores(sizes, weights, sequences[s], row, dtype), is_bf16 ? 2e-3 : 1e-5);
          check_close(row_of(got[s].out, row, sizes.latents.output_width()),
                      expected_output(sizes, weights, sequences[s], row, chosen, dtype), unit(dtype),
                      is_bf16 ? 0.03 : 2e-5);
        }
      }
    });
  }
}

TEST_CASE("attention over chosen latents of 8 bits has equal bits") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 66);
  for (const auto& [sizes, length] : {std::pair{case_of(4, 32, 16), 70}, std::pair{case_of(3, 40, 33, 7), 60}}) {
    const IndexedWeights weights = random_indexed_weights(random, sizes, true);
    IndexedSequence sequence = random_indexed(random, sizes, length);
    for (const CodedBackend& each : coded_backends()) {
      INFO(each.name << ", " << sizes.indexer.chosen_count << " chosen");
      const DType dtype = each.backend->compute_dtype();
      sequence.chunks = {length};
      const IndexedOutput whole = IndexedFeeder(*each.backend, sizes, weights).feed({sequence}, 1)[0];
      for (int32_t row = 0; row < length; row += 1 + row / 8) {
        const std::vector<int32_t>& chosen = whole.chosen[static_cast<size_t>(row)];
        REQUIRE(chosen.empty() == (row < sizes.indexer.chosen_count));
        check_close(row_of(whole.out, row, sizes.latents.output_width()),
                    expected_output(sizes, weights, sequence, row, chosen, dtype, each.stored), unit(dtype), 0.06);
      }
      for (const int32_t page_size : {1, 16, 7}) {
        IndexedCase paged = sizes;
        paged.page_size = page_size;
        sequence.chunks = random_chunks(random, length, page_size == 1);
        const auto got = IndexedFeeder(*each.backend, paged, weights).feed({sequence, sequence}, test_seed());
        REQUIRE(got[0].chosen == whole.chosen);
        REQUIRE(got[0].out == whole.out);
        REQUIRE(got[1].out == whole.out);
      }
    }
  }
}

TEST_CASE("codes of latents leave what an indexer chooses") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 67);
  const IndexedCase sizes = case_of(4, 32, 16);
  const IndexedWeights weights = random_indexed_weights(random, sizes, true);
  const IndexedSequence sequence = random_indexed(random, sizes, 60);
  std::map<std::string, Choice> choices;
  for_each_indexer([&](tensor::Backend& backend) {
    choices[backend.kv_format()] = IndexedFeeder(backend, sizes, weights).feed({sequence}, 1)[0].chosen;
  });
  for (const CodedBackend& each : coded_backends()) {
    INFO(each.name);
    const std::string format = each.backend->kv_format();
    const auto found = choices.find(format.substr(0, format.find(" kv ")));
    REQUIRE(found != choices.end());
    REQUIRE(IndexedFeeder(*each.backend, sizes, weights).feed({sequence}, 1)[0].chosen == found->second);
  }
}

TEST_CASE("an indexer chooses more tokens than a split has keys") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 65);
  const IndexedCase sizes = case_of(4, 32, 600);
  const IndexedWeights weights = random_indexed_weights(random, sizes, true);
  IndexedSequence sequence = random_indexed(random, sizes, 604);
  sequence.chunks = {599, 1, 1, 1, 2};
  IndexedSequence company = random_indexed(random, sizes, 9);
  company.chunks = {5, 1, 1, 1, 1};
  for_each_indexer([&](tensor::Backend& backend) {
    const DType dtype = backend.compute_dtype();
    const bool is_bf16 = dtype == DType::kBF16;
    const auto got = IndexedFeeder(backend, sizes, weights).feed({company, sequence}, test_seed())[1];
    for (int32_t row = 598; row < sequence.length; ++row) {
      const std::vector<int32_t>& chosen = got.chosen[static_cast<size_t>(row)];
      REQUIRE(chosen.empty() == (row < 600));
      if (!chosen.empty())
        check_choice(chosen, expected_scores(sizes, weights, sequence, row, dtype), is_bf16 ? 2e-3 : 1e-5);
      check_close(row_of(got.out, row, sizes.latents.output_width()),
                  expected_output(sizes, weights, sequence, row, chosen, dtype), unit(dtype), is_bf16 ? 0.03 : 2e-5);
    }
  });
}

TEST_CASE("of equal scores an indexer chooses the lower positions") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 61);
  constexpr int32_t kPeriod = 9;
  const IndexedCase sizes = case_of(32, 32, 25);
  const IndexedWeights weights = random_indexed_weights(random, sizes, false);
  IndexedSequence sequence = random_indexed(random, sizes, 200);
  const auto dim = static_cast<size_t>(sizes.indexer.head_dim);
  for (size_t i = kPeriod * dim; i < sequence.index_key.size(); ++i)
    sequence.index_key[i] = sequence.index_key[i % (kPeriod * dim)];
  for_each_indexer([&](tensor::Backend& backend) {
    const auto got = IndexedFeeder(backend, sizes, weights).feed({sequence}, test_seed())[0];
    for (int32_t row = sizes.indexer.chosen_count; row < sequence.length; ++row) {
      const std::vector<int32_t>& chosen = got.chosen[static_cast<size_t>(row)];
      std::vector<int32_t> counts(kPeriod, 0);
      // The first tokens of each kind are chosen, and only one kind may be chosen in part.
      for (const int32_t position : chosen)
        REQUIRE(position / kPeriod == counts[static_cast<size_t>(position % kPeriod)]++);
      int32_t partial = 0;
      for (int32_t kind = 0; kind < kPeriod; ++kind) {
        const int32_t all = (row - kind) / kPeriod + 1;
        if (counts[static_cast<size_t>(kind)] > 0 && counts[static_cast<size_t>(kind)] < all) ++partial;
      }
      REQUIRE(partial <= 1);
    }
  });
}

TEST_CASE("chosen tokens do not depend on chunks pages or company") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 62);
  for (const auto& [heads, dim] : {std::pair{4, 32}, std::pair{20, 72}}) {
    const IndexedCase sizes = case_of(heads, dim, 16);
    const IndexedWeights weights = random_indexed_weights(random, sizes, true);
    const IndexedSequence sequence = random_indexed(random, sizes, static_cast<int32_t>(random.integer(60, 150)));
    IndexedSequence other = random_indexed(random, sizes, 50);
    other.chunks = random_chunks(random, other.length, false);
    for_each_indexer([&](tensor::Backend& backend) {
      const auto whole = IndexedFeeder(backend, sizes, weights).feed({sequence}, 1)[0];
      for (const int32_t page_size : {1, 16, 64, 7}) {
        IndexedSequence same = sequence;
        same.chunks = random_chunks(random, same.length, page_size == 1);
        INFO(heads << " heads, pages of " << page_size << ", " << same.chunks.size() << " chunks");
        const auto got =
            IndexedFeeder(backend, case_of(heads, dim, 16, page_size), weights).feed({other, same, other}, test_seed());
        REQUIRE(got[1].chosen == whole.chosen);
        REQUIRE(got[1].out == whole.out);
        REQUIRE(got[0].out == got[2].out);
      }
    });
  }
}

TEST_CASE("a row that chooses all tokens has the bits of a dense row") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 63);
  const IndexedCase few = case_of(4, 32, 30);
  const IndexedCase many = case_of(4, 32, 60);
  const IndexedWeights weights = random_indexed_weights(random, few, false);
  IndexedSequence sequence = random_indexed(random, few, 31);
  // All scores of the last row are zero, so that it chooses the first tokens. Its query is that of the row before it.
  std::fill(sequence.index_q.begin() + 30 * few.indexer.query_width(), sequence.index_q.end(), 0.0f);
  const int64_t width = few.latents.query_width();
  std::copy_n(sequence.q.begin() + 29 * width, width, sequence.q.begin() + 30 * width);
  for_each_indexer([&](tensor::Backend& backend) {
    const auto sparse = IndexedFeeder(backend, few, weights).feed({sequence}, 1)[0];
    const auto dense = IndexedFeeder(backend, many, weights).feed({sequence}, 1)[0];
    REQUIRE(sparse.chosen[30].front() == 0);
    REQUIRE(sparse.chosen[30].back() == 29);
    const int64_t out = few.latents.output_width();
    REQUIRE(row_of(sparse.out, 30, out) == row_of(dense.out, 29, out));
    REQUIRE(Values(sparse.out.begin(), sparse.out.begin() + 30 * out) ==
            Values(dense.out.begin(), dense.out.begin() + 30 * out));
  });
}

TEST_CASE("a key of an indexer that is not finite is always chosen") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 64);
  const IndexedCase sizes = case_of(4, 32, 16);
  const IndexedWeights weights = random_indexed_weights(random, sizes, true);
  const IndexedSequence healthy = random_indexed(random, sizes, 60);
  constexpr int32_t kPosition = 5;
  for_each_indexer([&](tensor::Backend& backend) {
    for (const float value : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      IndexedSequence spoilt = healthy;
      spoilt.index_key[static_cast<size_t>(kPosition * sizes.indexer.head_dim + 20)] = value;
      const auto got = IndexedFeeder(backend, sizes, weights).feed({healthy, spoilt, healthy}, test_seed());
      REQUIRE(got[0].out == got[2].out);
      for (const std::vector<int32_t>& chosen : got[1].chosen)
        if (!chosen.empty()) REQUIRE(std::ranges::binary_search(chosen, kPosition));
    }
  });
}

TEST_CASE("pages of latents have the keys of an indexer after them") {
  for_each_indexer([](tensor::Backend& backend) {
    const tensor::KvCacheShape shape{.layer_count = 3,
                                     .kv_head_count = 1,
                                     .head_dim = 576,
                                     .page_size = 16,
                                     .page_count = 5,
                                     .latent_dim = 512,
                                     .index_dim = 128};
    REQUIRE(backend.make_kv_cache(shape)->page_bytes() == backend.kv_page_bytes(shape));
    REQUIRE(backend.kv_page_bytes(shape) == size_t{3} * 16 * (576 + 128) * tensor::size_of(backend.compute_dtype()));
  });
}
