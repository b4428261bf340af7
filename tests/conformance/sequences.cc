#include "conformance/sequences.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace millrace::test {
namespace {

constexpr float kEpsilon = 1e-6f;
constexpr int32_t kLayers = 3;

std::span<const float> row_of(const Values& values, int64_t row, int64_t width) {
  return std::span(values).subspan(static_cast<size_t>(row * width), static_cast<size_t>(width));
}

}  // namespace

std::string AttentionCase::to_string() const {
  return fmt::format(
      "{}/{} heads of {}, rotary {}, window {}, page {}, factor {}, norms {}, causal {}, cap {}, sinks {}, beta {}, "
      "head norm {}, value norm {}, keys as values {}, chunk {}",
      head_count, kv_head_count, head_dim, rotary_dim, sliding_window, page_size, attention_factor, norms, causal,
      soft_cap, sinks, query_beta, static_cast<int>(head_norm), value_norm, values_are_keys, chunk_size);
}

bool AttentionCase::is_computed_by(const tensor::Backend& backend) const {
  using tensor::Feature;
  return (causal || backend.computes(Feature::kEncoders)) &&
         (soft_cap == 0.0f || backend.computes(Feature::kAttentionSoftCap)) &&
         (!sinks || backend.computes(Feature::kAttentionSinks)) &&
         (!norms_all_heads || backend.computes(Feature::kNormOfAllHeads)) &&
         (head_norm == tensor::HeadNorm::kRms || backend.computes(Feature::kHeadNorms)) &&
         (chunk_size == 0 || backend.computes(Feature::kAttentionChunks)) &&
         ((!value_norm && !values_are_keys) || backend.computes(Feature::kValueNorms)) &&
         (query_beta == 0.0f || backend.computes(Feature::kQueryScaling));
}

TestSequence random_sequence(Random& random, const AttentionCase& sizes, int32_t length, bool one_by_one) {
  TestSequence sequence{.length = length};
  sequence.qkv = random.normal(int64_t{length} * (sizes.head_count + sizes.kv_head_count + sizes.value_head_count()) *
                               sizes.head_dim);
  sequence.chunks = random_chunks(random, length, one_by_one);
  return sequence;
}

std::vector<int32_t> random_chunks(Random& random, int32_t length, bool one_by_one) {
  std::vector<int32_t> chunks;
  for (int32_t fed = 0; fed < length; fed += chunks.back()) {
    const int64_t most = one_by_one ? 1 : std::max<int64_t>(1, std::min<int64_t>(length - fed, length / 2 + 1));
    chunks.push_back(static_cast<int32_t>(random.integer(1, most)));
  }
  return chunks;
}

Weights random_weights(Random& random, const AttentionCase& sizes) {
  Weights weights;
  for (int32_t i = 0; i < sizes.rotary_dim / 2; ++i) {
    weights.inverse_frequency.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / sizes.rotary_dim)));
  }
  weights.q_norm = random.normal(int64_t{sizes.has_head_weights() ? sizes.head_count : 1} * sizes.head_dim);
  weights.k_norm = random.normal(int64_t{sizes.has_head_weights() ? sizes.kv_head_count : 1} * sizes.head_dim);
  if (sizes.sinks) {
    weights.sinks = random.normal(sizes.head_count, 2.0f);
    weights.sinks.front() = 40.0f;   // takes nearly everything
    weights.sinks.back() = -300.0f;  // takes nothing
  }
  return weights;
}

namespace {

/// A cache of `page_count` pages, and the two ops that use it.
class Feeder {
 public:
  Feeder(tensor::Backend& backend, const AttentionCase& sizes, const Weights& weights, const Feeding& feeding,
         int32_t page_count)
      : backend_(backend),
        sizes_(sizes),
        layer_(feeding.layer),
        cache_(backend.make_kv_cache({.layer_count = kLayers,
                                      .kv_head_count = sizes.kv_head_count,
                                      .head_dim = sizes.head_dim,
                                      .page_size = sizes.page_size,
                                      .page_count = page_count})),
        frequencies_(backend.make_vector(weights.inverse_frequency)),
        q_norm_(backend.make_vector(weights.q_norm)),
        k_norm_(backend.make_vector(weights.k_norm)),
        sinks_(backend.make_vector(weights.sinks)) {}

  /// Fills all pages with one random sequence.
  void leave_noise(uint64_t seed) {
    const int32_t page_count = cache_->shape().page_count;
    const int32_t rows = page_count * sizes_.page_size;
    Random random(seed);
    Values qkv = random.normal(rows * qkv_width(), 30.0f);
    const int64_t first_key = q_width();
    for (int64_t row = 0; row < rows; ++row) {
      const bool in_key = row % 5 == 0;
      const bool in_value = row % 5 == 3;
      const int64_t channel = first_key + (in_value ? int64_t{sizes_.value_head_count()} * sizes_.head_dim : 0);
      if (in_key || in_value) qkv[static_cast<size_t>(row * qkv_width() + channel)] = std::nanf("");
    }
    std::vector<PageId> pages;
    for (int32_t page = 0; page < page_count; ++page) pages.emplace_back(static_cast<uint32_t>(page));
    const std::vector<int32_t> row_begin = {0, rows};
    const std::vector<int32_t> prefix = {0};
    const std::vector<int32_t> page_begin = {0, page_count};
    (void)run({.row_begin = row_begin, .prefix = prefix, .page_begin = page_begin, .pages = pages}, qkv, false);
  }

  /// Returns out [rows, heads·head_dim]; zeros when it does not attend.
  Values run(const tensor::BatchLayout& batch, const Values& qkv, bool attends = true) {
    const tensor::AttentionShape shape{.head_count = sizes_.head_count,
                                       .kv_head_count = sizes_.kv_head_count,
                                       .head_dim = sizes_.head_dim,
                                       .scale = 1.0f / std::sqrt(static_cast<float>(sizes_.head_dim)),
                                       .sliding_window = sizes_.sliding_window,
                                       .chunk_size = sizes_.chunk_size,
                                       .causal = sizes_.causal,
                                       .soft_cap = sizes_.soft_cap,
                                       .sinks = sizes_.sinks ? sinks_.get() : nullptr,
                                       .head_norm = sizes_.head_norm,
                                       .value_norm = sizes_.value_norm,
                                       .values_are_keys = sizes_.values_are_keys};
    const tensor::RotaryTable rotary{.inverse_frequency = frequencies_.get(),
                                     .rotary_dim = sizes_.rotary_dim,
                                     .attention_factor = sizes_.attention_factor,
                                     .query_beta = sizes_.query_beta,
                                     .query_period = sizes_.query_period,
                                     .query_offset = sizes_.query_offset};
    const int64_t rows = batch.row_count();
    Values result;
    backend_.run_and_wait([&] {
      const DeviceMatrix in = make_matrix(backend_, tensor::DType::kF32, rows, qkv_width());
      const DeviceMatrix q = make_matrix(backend_, backend_.compute_dtype(), rows, q_width());
      const DeviceMatrix out = make_matrix(backend_, backend_.compute_dtype(), rows, q_width());
      upload(backend_, qkv, in);
      const tensor::UploadedBatch uploaded = backend_.upload(batch);
      backend_.rotary_store_kv(in.matrix, shape, rotary, sizes_.norms ? q_norm_.get() : nullptr,
                               sizes_.norms ? k_norm_.get() : nullptr, kEpsilon, uploaded, *cache_, layer_, q.matrix);
      if (attends) backend_.attention(q.matrix, shape, uploaded, *cache_, layer_, out.matrix);
      result = download(backend_, out.matrix);
    });
    return result;
  }

  [[nodiscard]] int64_t q_width() const { return int64_t{sizes_.head_count} * sizes_.head_dim; }
  [[nodiscard]] int64_t qkv_width() const {
    return int64_t{sizes_.head_count + sizes_.kv_head_count + sizes_.value_head_count()} * sizes_.head_dim;
  }

 private:
  tensor::Backend& backend_;
  const AttentionCase sizes_;
  const int32_t layer_;
  std::unique_ptr<tensor::KvCache> cache_;
  std::unique_ptr<tensor::DeviceVector> frequencies_;
  std::unique_ptr<tensor::DeviceVector> q_norm_;
  std::unique_ptr<tensor::DeviceVector> k_norm_;
  std::unique_ptr<tensor::DeviceVector> sinks_;
};

}  // namespace

PageTables shuffled_pages(int32_t page_size, const std::vector<int32_t>& lengths, uint64_t seed) {
  PageTables tables;
  for (const int32_t length : lengths) tables.page_count += (length + page_size - 1) / page_size;
  std::vector<PageId> free_pages;
  for (int32_t page = 0; page < tables.page_count; ++page) free_pages.emplace_back(static_cast<uint32_t>(page));
  std::mt19937_64 shuffler(seed);
  std::shuffle(free_pages.begin(), free_pages.end(), shuffler);
  for (const int32_t length : lengths) {
    std::vector<PageId>& pages = tables.pages.emplace_back();
    for (int32_t token = 0; token < length; token += page_size) {
      pages.push_back(free_pages.back());
      free_pages.pop_back();
    }
  }
  return tables;
}

std::vector<Values> feed(tensor::Backend& backend, const AttentionCase& sizes, const Weights& weights,
                         const std::vector<TestSequence>& sequences, const Feeding& feeding) {
  std::vector<int32_t> lengths;
  for (const TestSequence& sequence : sequences) lengths.push_back(sequence.length);
  const auto [pages, page_count] = shuffled_pages(sizes.page_size, lengths, feeding.page_seed);
  Feeder feeder(backend, sizes, weights, feeding, page_count);
  if (feeding.noise) feeder.leave_noise(feeding.page_seed);
  std::vector<Values> outputs(sequences.size());
  std::vector<int32_t> fed(sequences.size(), 0);
  for (size_t step = 0;; ++step) {
    std::vector<int32_t> row_begin = {0};
    std::vector<int32_t> prefix;
    std::vector<int32_t> page_begin = {0};
    std::vector<PageId> page_table;
    std::vector<size_t> members;
    Values qkv;
    for (size_t s = 0; s < sequences.size(); ++s) {
      if (step >= sequences[s].chunks.size()) continue;
      const int32_t rows = sequences[s].chunks[step];
      members.push_back(s);
      prefix.push_back(fed[s]);
      row_begin.push_back(row_begin.back() + rows);
      const auto from = sequences[s].qkv.begin() + fed[s] * feeder.qkv_width();
      qkv.insert(qkv.end(), from, from + rows * feeder.qkv_width());
      fed[s] += rows;
      const int32_t used = (fed[s] + sizes.page_size - 1) / sizes.page_size;
      page_table.insert(page_table.end(), pages[s].begin(), pages[s].begin() + used);
      page_begin.push_back(static_cast<int32_t>(page_table.size()));
    }
    if (members.empty()) return outputs;
    const Values result =
        feeder.run({.row_begin = row_begin, .prefix = prefix, .page_begin = page_begin, .pages = page_table}, qkv);
    for (size_t m = 0; m < members.size(); ++m) {
      outputs[members[m]].insert(outputs[members[m]].end(), result.begin() + row_begin[m] * feeder.q_width(),
                                 result.begin() + row_begin[m + 1] * feeder.q_width());
    }
  }
}

Values expected_outputs(const AttentionCase& sizes, const Weights& weights, const TestSequence& sequence,
                        tensor::DType dtype, tensor::KvDType stored) {
  const int64_t dim = sizes.head_dim;
  const int64_t q_width = sizes.head_count * dim;
  const int64_t kv_width = sizes.kv_head_count * dim;
  const int64_t qkv_width = q_width + kv_width + sizes.value_head_count() * dim;
  const auto turned = [&](std::span<const float> heads, const Values& norm, int64_t position, double factor) {
    Values values(heads.begin(), heads.end());
    if (sizes.norms && sizes.head_norm == tensor::HeadNorm::kRms)
      values = reference::rms_norm(values, norm, double{kEpsilon});
    for (size_t head = 0; head < values.size(); head += static_cast<size_t>(dim)) {
      const auto own = std::span(values).subspan(head, static_cast<size_t>(dim));
      if (sizes.norms && sizes.head_norm == tensor::HeadNorm::kLayer) {
        const Values zeros(own.size(), 0.0f);
        const Values weight(norm.begin() + static_cast<int64_t>(head), norm.begin() + static_cast<int64_t>(head) + dim);
        const Values normed = reference::layer_norm({own.begin(), own.end()}, weight, zeros, double{kEpsilon});
        std::ranges::copy(normed, own.begin());
      }
      reference::rotate(own, weights.inverse_frequency, sizes.attention_factor, position);
    }
    if (sizes.norms && sizes.head_norm == tensor::HeadNorm::kRotatedRms)
      values = reference::rms_norm(values, norm, double{kEpsilon});
    for (float& value : values) value = static_cast<float>(value * factor);
    return values;
  };
  reference::History history;
  std::vector<Values> queries;
  for (int64_t position = 0; position < sequence.length; ++position) {
    const auto row = row_of(sequence.qkv, position, qkv_width);
    const auto widths = static_cast<size_t>(kv_width);
    const double factor = reference::query_factor(sizes.query_beta, sizes.query_period, position + sizes.query_offset);
    queries.push_back(
        reference::rounded(turned(row.first(static_cast<size_t>(q_width)), weights.q_norm, position, factor), dtype));
    const Values raw_key = turned(row.subspan(static_cast<size_t>(q_width), widths), weights.k_norm, position, 1.0);
    const auto stored_value = row.last(widths);
    Values raw_value(stored_value.begin(), stored_value.end());
    if (sizes.value_norm)
      raw_value = reference::rms_norm(raw_value, Values(static_cast<size_t>(dim), 1.0f), double{kEpsilon});
    const Values k = reference::rounded(reference::rounded_to_kv(raw_key, dim, stored), dtype);
    const Values v = reference::rounded(reference::rounded_to_kv(raw_value, dim, stored), dtype);
    history.keys.insert(history.keys.end(), k.begin(), k.end());
    history.values.insert(history.values.end(), v.begin(), v.end());
  }
  Values outputs;
  for (int64_t position = 0; position < sequence.length; ++position) {
    const int64_t last = sizes.causal ? position : sequence.length - 1;
    const Values out = reference::attention(queries[static_cast<size_t>(position)], last, history,
                                            {.head_count = sizes.head_count,
                                             .kv_head_count = sizes.kv_head_count,
                                             .head_dim = sizes.head_dim,
                                             .scale = 1.0 / std::sqrt(static_cast<double>(dim)),
                                             .sliding_window = sizes.sliding_window,
                                             .chunk_size = sizes.chunk_size,
                                             .soft_cap = sizes.soft_cap,
                                             .sinks = weights.sinks});
    outputs.insert(outputs.end(), out.begin(), out.end());
  }
  return outputs;
}

}  // namespace millrace::test
