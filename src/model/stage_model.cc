#include "model/stage_model.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace millrace::model {

using tensor::DType;
using tensor::Matrix;

Result<std::unique_ptr<StageModel>> StageModel::load(const Checkpoint& checkpoint, const ModelConfig& config,
                                                     StageSpan span, tensor::Backend& backend, StageLimits limits,
                                                     const ProgressFn& progress) {
  CHECK(limits.max_batch_tokens > 0, "max_batch_tokens {}", limits.max_batch_tokens);
  CHECK(!span.last || limits.max_logit_rows > 0, "max_logit_rows {}", limits.max_logit_rows);
  Result<StageWeights> weights = load_weights(checkpoint, config, span, backend, progress);
  if (!weights) return weights.error();
  return std::unique_ptr<StageModel>(new StageModel(config, span, backend, limits, std::move(*weights)));
}

StageModel::StageModel(const ModelConfig& config, StageSpan span, tensor::Backend& backend, StageLimits limits,
                       StageWeights weights)
    : config_(config), span_(span), backend_(backend), limits_(limits), weights_(std::move(weights)) {
  const RotaryFrequencies frequencies = rotary_frequencies(config_.rope, config_.head_dim);
  inverse_frequency_ = backend_.make_vector(frequencies.inverse);
  attention_factor_ = frequencies.attention_factor;
  allocate_activations();
}

void StageModel::allocate_activations() {
  const DType compute = backend_.compute_dtype();
  const auto batch = [&](DType dtype, int64_t cols) {
    return backend_.allocate(Matrix{nullptr, dtype, limits_.max_batch_tokens, cols}.bytes());
  };
  activations_.normed = batch(compute, config_.hidden_size);
  activations_.qkv = batch(DType::kF32, config_.query_width() + 2 * config_.kv_width());
  activations_.query = batch(compute, config_.query_width());
  activations_.attended = batch(compute, config_.query_width());
  activations_.activated = batch(compute, config_.intermediate_size);
  if (!span_.last) return;
  const auto rows = [&](int64_t count, DType dtype, int64_t cols) {
    return backend_.allocate(Matrix{nullptr, dtype, count, cols}.bytes());
  };
  activations_.tail_query = rows(limits_.max_tail_rows, compute, config_.query_width());
  activations_.tail_hidden = rows(limits_.max_tail_rows, backend_.hidden_dtype(), config_.hidden_size);
  activations_.row_hidden = rows(limits_.max_logit_rows, backend_.hidden_dtype(), config_.hidden_size);
  activations_.row_normed = rows(limits_.max_logit_rows, compute, config_.hidden_size);
  activations_.logits = rows(limits_.max_logit_rows, DType::kF32, config_.vocab_size);
}

void StageModel::allocate_cache(int32_t page_size, int32_t page_count) {
  CHECK(!cache_, "the cache is allocated once");
  cache_ = backend_.make_kv_cache({.layer_count = span_.layers.size(),
                                   .kv_head_count = config_.kv_head_count,
                                   .head_dim = config_.head_dim,
                                   .page_size = page_size,
                                   .page_count = page_count});
}

tensor::KvCache& StageModel::cache() const {
  CHECK(cache_ != nullptr, "the cache is not allocated yet");
  return *cache_;
}

tensor::Buffer StageModel::allocate_hidden() {
  return backend_.allocate(
      Matrix{nullptr, backend_.hidden_dtype(), limits_.max_batch_tokens, config_.hidden_size}.bytes());
}

Matrix StageModel::hidden_view(const tensor::Buffer& buffer, int64_t rows) const {
  const Matrix view{buffer.data(), backend_.hidden_dtype(), rows, config_.hidden_size};
  CHECK(view.bytes() <= buffer.bytes(), "{} rows of hidden are {} bytes, the buffer has {}", rows, view.bytes(),
        buffer.bytes());
  return view;
}

Matrix StageModel::forward(const ForwardInput& input) {
  const int64_t rows = input.batch.row_count();
  CHECK(rows > 0 && rows <= limits_.max_batch_tokens, "a batch of {} rows, wanted 1 to {}", rows,
        limits_.max_batch_tokens);
  CHECK(input.hidden.rows == rows && input.hidden.cols == config_.hidden_size &&
            input.hidden.dtype == backend_.hidden_dtype(),
        "hidden is {} [{}, {}], wanted {} [{}, {}]", tensor::to_string(input.hidden.dtype), input.hidden.rows,
        input.hidden.cols, tensor::to_string(backend_.hidden_dtype()), rows, config_.hidden_size);
  if (span_.first) {
    CHECK(static_cast<int64_t>(input.tokens.size()) == rows, "{} tokens for {} rows", input.tokens.size(), rows);
    backend_.embed(*weights_.embedding, input.tokens, input.hidden);
  }
  for (int32_t index = 0; index < span_.layers.size(); ++index) {
    const LayerWeights& layer = weights_.layers[static_cast<size_t>(index)];
    const Matrix query = project_qkv(layer, index, input);
    for (const auto& load : input.loads) load->pass(index);
    if (!input.tails.empty() && index + 1 == span_.layers.size()) return finish_tails(layer, index, input, query);
    attend(layer, index, query, input.batch, input.hidden);
    feed_forward(layer, input.hidden);
  }
  return input.hidden;
}

tensor::AttentionShape StageModel::attention_shape(int32_t index) const {
  const auto model_layer = static_cast<size_t>(span_.layers.begin + index);
  return {.head_count = config_.head_count,
          .kv_head_count = config_.kv_head_count,
          .head_dim = config_.head_dim,
          .scale = static_cast<float>(1.0 / std::sqrt(config_.head_dim)),
          .sliding_window = config_.sliding_windows[model_layer]};
}

/// The queries of all rows; their keys and values go to the pages.
Matrix StageModel::project_qkv(const LayerWeights& layer, int32_t index, const ForwardInput& input) {
  const int64_t rows = input.hidden.rows;
  const DType compute = backend_.compute_dtype();
  const int64_t query_width = config_.query_width();
  const Matrix normed{activations_.normed.data(), compute, rows, config_.hidden_size};
  const Matrix qkv{activations_.qkv.data(), DType::kF32, rows, query_width + 2 * config_.kv_width()};
  const Matrix query{activations_.query.data(), compute, rows, query_width};
  const tensor::RotaryTable rotary{.inverse_frequency = inverse_frequency_.get(),
                                   .rotary_dim = config_.head_dim,
                                   .attention_factor = attention_factor_};
  backend_.rms_norm(input.hidden, *layer.input_norm, config_.norm_epsilon, normed);
  backend_.matmul(normed, *layer.qkv, layer.qkv_bias.get(), qkv);
  backend_.rotary_store_kv(qkv, attention_shape(index), rotary, layer.q_norm.get(), layer.k_norm.get(),
                           config_.norm_epsilon, input.batch, cache(), index, query);
  return query;
}

void StageModel::attend(const LayerWeights& layer, int32_t index, Matrix query, const tensor::BatchLayout& batch,
                        Matrix hidden) {
  const Matrix attended{activations_.attended.data(), backend_.compute_dtype(), query.rows, query.cols};
  backend_.attention(query, attention_shape(index), batch, cache(), index, attended);
  backend_.matmul_add(attended, *layer.output, layer.output_bias.get(), hidden);
}

/// The rest of the last layer for the last rows of each sequence.
Matrix StageModel::finish_tails(const LayerWeights& layer, int32_t index, const ForwardInput& input, Matrix query) {
  const size_t sequences = input.batch.sequence_count();
  CHECK(span_.last && input.tails.size() == sequences, "tails of {} sequences for {}", input.tails.size(), sequences);
  std::vector<int32_t> rows;
  std::vector<int32_t> row_begin{0};
  std::vector<int32_t> prefix;
  for (size_t s = 0; s < sequences; ++s) {
    const int32_t begin = input.batch.row_begin[s];
    const int32_t end = input.batch.row_begin[s + 1];
    CHECK(input.tails[s] >= 0 && input.tails[s] <= end - begin, "the last {} of {} rows", input.tails[s], end - begin);
    for (int32_t row = end - input.tails[s]; row < end; ++row) rows.push_back(row);
    row_begin.push_back(static_cast<int32_t>(rows.size()));
    prefix.push_back(input.batch.prefix[s] + (end - begin) - input.tails[s]);
  }
  const auto count = static_cast<int64_t>(rows.size());
  CHECK(count <= limits_.max_tail_rows, "{} rows go on, wanted at most {}", count, limits_.max_tail_rows);
  const Matrix hidden{activations_.tail_hidden.data(), backend_.hidden_dtype(), count, config_.hidden_size};
  if (count == 0) return hidden;
  const Matrix tail_query{activations_.tail_query.data(), query.dtype, count, query.cols};
  backend_.gather_rows(input.hidden, rows, hidden);
  backend_.gather_rows(query, rows, tail_query);
  attend(layer, index, tail_query, {row_begin, prefix, input.batch.page_begin, input.batch.pages}, hidden);
  feed_forward(layer, hidden);
  return hidden;
}

void StageModel::feed_forward(const LayerWeights& layer, Matrix hidden) {
  const DType compute = backend_.compute_dtype();
  const Matrix normed{activations_.normed.data(), compute, hidden.rows, config_.hidden_size};
  const Matrix activated{activations_.activated.data(), compute, hidden.rows, config_.intermediate_size};
  backend_.rms_norm(hidden, *layer.mlp_norm, config_.norm_epsilon, normed);
  backend_.matmul_silu_mul(normed, *layer.gate_up, activated);
  backend_.matmul_add(activated, *layer.down, nullptr, hidden);
}

void StageModel::logits(Matrix hidden, std::span<const int32_t> rows, const LogitsFn& block) {
  CHECK(span_.last, "logits of a stage that is not the last");
  const auto largest = static_cast<size_t>(limits_.max_logit_rows);
  for (size_t first = 0; first < rows.size(); first += largest) {
    const auto part = rows.subspan(first, std::min(largest, rows.size() - first));
    const auto count = static_cast<int64_t>(part.size());
    const Matrix gathered{activations_.row_hidden.data(), backend_.hidden_dtype(), count, config_.hidden_size};
    const Matrix normed{activations_.row_normed.data(), backend_.compute_dtype(), count, config_.hidden_size};
    const Matrix logits{activations_.logits.data(), DType::kF32, count, config_.vocab_size};
    backend_.gather_rows(hidden, part, gathered);
    backend_.rms_norm(gathered, *weights_.final_norm, config_.norm_epsilon, normed);
    backend_.matmul(normed, *weights_.head, nullptr, logits);
    block(first, logits);
  }
}

}  // namespace millrace::model
