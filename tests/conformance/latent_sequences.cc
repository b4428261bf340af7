#include "conformance/latent_sequences.h"

#include <algorithm>
#include <cmath>

namespace millrace::test {

using tensor::DType;
using tensor::LatentShape;

namespace {

constexpr float kLatentEpsilon = 1e-6f;
constexpr int32_t kLatentLayers = 3;
constexpr int32_t kLatentLayer = 1;

/// A cache of latents and the two ops that use it.
class LatentFeeder {
 public:
  LatentFeeder(tensor::Backend& backend, const LatentCase& sizes, const LatentWeights& weights, int32_t page_count)
      : backend_(backend),
        sizes_(sizes),
        shape_(sizes.shape),
        cache_(backend.make_kv_cache({.layer_count = kLatentLayers,
                                      .kv_head_count = 1,
                                      .head_dim = shape_.key_dim(),
                                      .page_size = sizes.page_size,
                                      .page_count = page_count,
                                      .latent_dim = shape_.latent_dim})),
        frequencies_(backend.make_vector(weights.inverse_frequency)),
        norm_(backend.make_vector(weights.norm)) {
    if (weights.fp8 != nullptr) {
      expansion_ = backend.pack_fp8_latent_expansion(*weights.fp8, shape_);
      return;
    }
    if (weights.rows != nullptr) {
      expansion_ = backend.pack_latent_code_rows(*weights.rows, shape_);
      return;
    }
    if (weights.queries != nullptr) {
      expansion_ = backend.pack_latent_codes(*weights.queries, *weights.values, shape_);
      return;
    }
    const HostMatrix kv_b(weights.kv_b, backend.compute_dtype(),
                          int64_t{shape_.head_count} * (shape_.nope_dim + shape_.value_dim), shape_.latent_dim);
    expansion_ = backend.pack_latent_expansion(kv_b.tensor(), shape_);
  }

  /// Stores a batch, and returns its attention [rows, heads·value_dim].
  Values run(const tensor::BatchLayout& batch, const Values& q, const Values& kv) {
    const tensor::RotaryTable rotary{.inverse_frequency = frequencies_.get(),
                                     .rotary_dim = shape_.rope_dim,
                                     .query_beta = sizes_.query_beta,
                                     .query_period = sizes_.query_period};
    const int64_t rows = batch.row_count();
    Values result;
    backend_.run_and_wait([&] {
      const DeviceMatrix latents = make_matrix(backend_, DType::kF32, rows, shape_.key_dim());
      const DeviceMatrix queries = make_matrix(backend_, DType::kF32, rows, shape_.query_width());
      const DeviceMatrix out = make_matrix(backend_, backend_.compute_dtype(), rows, shape_.output_width());
      upload(backend_, kv, latents);
      upload(backend_, q, queries);
      const tensor::UploadedBatch uploaded = backend_.upload(batch);
      backend_.store_latent(latents.matrix, shape_, rotary, *norm_, kLatentEpsilon, uploaded, *cache_, kLatentLayer);
      backend_.latent_attention(queries.matrix, shape_, rotary, *expansion_, uploaded, *cache_, kLatentLayer,
                                out.matrix);
      result = download(backend_, out.matrix);
    });
    return result;
  }

 private:
  tensor::Backend& backend_;
  const LatentCase sizes_;
  const LatentShape shape_;
  std::unique_ptr<tensor::KvCache> cache_;
  std::unique_ptr<tensor::DeviceVector> frequencies_;
  std::unique_ptr<tensor::DeviceVector> norm_;
  std::unique_ptr<tensor::LatentExpansion> expansion_;
};

}  // namespace

LatentShape shape_of(int32_t heads, int32_t nope, int32_t rope, int32_t value, int32_t latent) {
  return {.head_count = heads,
          .nope_dim = nope,
          .rope_dim = rope,
          .value_dim = value,
          .latent_dim = latent,
          .scale = 1.0f / std::sqrt(static_cast<float>(nope + rope))};
}

LatentWeights random_latent_weights(Random& random, const LatentShape& shape) {
  LatentWeights weights;
  for (int32_t i = 0; i < shape.rope_dim / 2; ++i)
    weights.inverse_frequency.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / shape.rope_dim)));
  weights.norm = random.normal(shape.latent_dim);
  weights.kv_b = random.normal(int64_t{shape.head_count} * (shape.nope_dim + shape.value_dim) * shape.latent_dim,
                               1.0f / std::sqrt(static_cast<float>(shape.latent_dim)));
  return weights;
}

LatentSequence random_latents(Random& random, const LatentShape& shape, int32_t length) {
  return {.length = length,
          .q = random.normal(length * shape.query_width()),
          .kv = random.normal(int64_t{length} * shape.key_dim()),
          .chunks = {length}};
}

LatentSequence head_of(const LatentSequence& sequence, const LatentShape& shape, int64_t head) {
  const int64_t query_dim = int64_t{shape.nope_dim} + shape.rope_dim;
  LatentSequence own = sequence;
  own.q.clear();
  for (int64_t row = 0; row < sequence.length; ++row) {
    const auto from = sequence.q.begin() + row * shape.query_width() + head * query_dim;
    own.q.insert(own.q.end(), from, from + query_dim);
  }
  return own;
}

bool has_head(const Values& all, const Values& own, const LatentShape& shape, int64_t head) {
  for (int64_t row = 0; row * shape.output_width() < std::ssize(all); ++row) {
    const auto from = all.begin() + row * shape.output_width() + head * shape.value_dim;
    if (!std::equal(from, from + shape.value_dim, own.begin() + row * shape.value_dim)) return false;
  }
  return true;
}

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

Values stored_latent(const Values& latent, DType dtype, tensor::KvDType stored) {
  constexpr size_t kScaleChannels = 128;  // of E4M3, and whole groups of int8
  Values coded;
  for (size_t first = 0; first < latent.size(); first += kScaleChannels) {
    const size_t count = std::min(kScaleChannels, latent.size() - first);
    const Values part(latent.data() + first, latent.data() + first + count);
    const Values rounded = reference::rounded_to_kv(part, static_cast<int64_t>(count), stored);
    coded.insert(coded.end(), rounded.begin(), rounded.end());
  }
  return reference::rounded(coded, dtype);
}

Values expected_latent_outputs(const LatentCase& sizes, const LatentWeights& weights, const LatentSequence& sequence,
                               DType dtype, tensor::KvDType stored) {
  const LatentShape& shape = sizes.shape;
  const auto latent_dim = static_cast<size_t>(shape.latent_dim);
  const auto key_dim = static_cast<size_t>(shape.key_dim());
  const auto head_dim = static_cast<size_t>(shape.nope_dim + shape.rope_dim);
  const Values kv_b = weights.has_codes() ? weights.kv_b : reference::rounded(weights.kv_b, dtype);
  reference::LatentHistory history;
  Values outputs;
  for (int32_t position = 0; position < sequence.length; ++position) {
    const auto* const kv = sequence.kv.data() + static_cast<size_t>(position) * key_dim;
    const Values latent = reference::rms_norm(Values(kv, kv + latent_dim), weights.norm, double{kLatentEpsilon});
    Values key(kv + latent_dim, kv + key_dim);
    reference::rotate(key, weights.inverse_frequency, 1.0f, position);
    for (const float x : stored_latent(latent, dtype, stored)) history.latents.push_back(x);
    for (const float x : reference::rounded(key, dtype)) history.keys.push_back(x);
    const auto* const q = sequence.q.data() + position * shape.query_width();
    Values query(q, q + shape.query_width());
    const auto factor = static_cast<float>(reference::query_factor(sizes.query_beta, sizes.query_period, position));
    for (float& value : query) value *= factor;
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

}  // namespace millrace::test
