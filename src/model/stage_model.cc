#include "model/stage_model.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"

namespace millrace::model {

using tensor::DType;
using tensor::Matrix;

namespace {

tensor::BatchSize batch_size(const tensor::BatchLayout& batch) {
  tensor::BatchSize size{batch.row_count(), static_cast<int32_t>(batch.sequence_count()), 0};
  for (size_t s = 0; s < batch.sequence_count(); ++s) {
    size.sequence_rows = std::max(size.sequence_rows, batch.row_begin[s + 1] - batch.row_begin[s]);
  }
  return size;
}

/// Returns the row of each token in a table of positions, -1 for padding.
std::vector<int32_t> position_rows(const tensor::BatchLayout& batch, int32_t first_position) {
  std::vector<int32_t> rows(static_cast<size_t>(batch.row_count()), -1);
  for (size_t s = 0; s < batch.sequence_count(); ++s) {
    const int32_t begin = batch.row_begin[s];
    for (int32_t row = begin; row < batch.row_begin[s + 1]; ++row)
      rows[static_cast<size_t>(row)] = first_position + batch.prefix[s] + row - begin;
  }
  return rows;
}

}  // namespace

/// The rows that go on from the last layer's keys and values.
struct StageModel::Tails {
  std::vector<int32_t> row_numbers;   // -1 for padding
  std::vector<int32_t> row_begin{0};  // [sequences + 1]
  std::vector<int32_t> prefix;        // [sequences]
  tensor::UploadedIndices rows;
  tensor::UploadedBatch batch;
  Matrix hidden;      // [row_numbers, hidden]
  int64_t count = 0;  // of its rows, without padding
};

/// One forward pass with its inputs uploaded.
struct StageModel::ForwardPass {
  std::span<const std::shared_ptr<tensor::LayerGate>> loads;
  std::span<const std::byte> received;
  bool replays = false;
  Matrix hidden;  // with padding
  tensor::UploadedBatch batch;
  tensor::UploadedIndices tokens;
  std::optional<Tails> tails;
  std::vector<TokenId> padded_tokens;  // where there is padding
  // Used by the first stage of an encoder.
  std::vector<int32_t> position_rows;
  std::vector<int32_t> type_rows;
  tensor::UploadedIndices positions;
  tensor::UploadedIndices types;
};

Result<std::unique_ptr<StageModel>> StageModel::load(const Checkpoint& checkpoint, const ModelConfig& config,
                                                     StageSpan span, tensor::Backend& backend, StageLimits limits,
                                                     const LoadOptions& options) {
  CHECK(limits.max_batch_tokens > 0, "max_batch_tokens {}", limits.max_batch_tokens);
  CHECK(!span.last || limits.max_logit_rows > 0, "max_logit_rows {}", limits.max_logit_rows);
  Result<StageWeights> weights = load_weights(checkpoint, config, span, backend, options);
  if (!weights) return weights.error();
  return std::unique_ptr<StageModel>(new StageModel(config, span, backend, limits, options, std::move(*weights)));
}

StageModel::StageModel(const ModelConfig& config, StageSpan span, tensor::Backend& backend, StageLimits limits,
                       const LoadOptions& options, StageWeights weights)
    : config_(config),
      span_(span),
      backend_(backend),
      limits_(limits),
      layout_(rank_layout(config, options.position, options.experts)),
      weights_(std::move(weights)) {
  RotaryFrequencies frequencies = rotary_frequencies(config_.rope, config_.head_dim);
  // No rotation: the cosine of 0 is 1.
  if (config_.encoder) frequencies = {.inverse = std::vector<float>(static_cast<size_t>(config_.head_dim / 2))};
  inverse_frequency_ = backend_.make_vector(frequencies.inverse);
  attention_factor_ = frequencies.attention_factor;
  replay_ = backend_.make_replay();
  allocate_activations();
}

void StageModel::set_collective(tensor::Collective* collective) {
  CHECK(collective == nullptr || collective->position() == layout_.position,
        "a collective of rank {} of {}, wanted {} of {}", collective->position().rank, collective->position().size,
        layout_.position.rank, layout_.position.size);
  replay_ = backend_.make_replay();  // recorded graphs call the old one
  collective_ = collective;
}

void StageModel::set_expert_exchange(tensor::ExpertExchange* exchange) {
  CHECK(exchange == nullptr || exchange->position() == layout_.experts.position,
        "an exchange of position {} of {}, wanted {} of {}", exchange->position().rank, exchange->position().size,
        layout_.experts.position.rank, layout_.experts.position.size);
  CHECK(exchange == nullptr || backend_.is_host(), "{}: experts are shared between rings on CPUs only",
        backend_.description());
  expert_exchange_ = exchange;
}

void StageModel::allocate_activations() {
  const DType compute = backend_.compute_dtype();
  const auto batch = [&](DType dtype, int64_t cols) {
    return backend_.allocate(Matrix{.dtype = dtype, .rows = limits_.max_batch_tokens, .cols = cols}.bytes());
  };
  activations_.normed = batch(compute, config_.hidden_size);
  activations_.qkv = batch(DType::kF32, query_width() + 2 * kv_width());
  activations_.query = batch(compute, query_width());
  activations_.attended = batch(compute, query_width());
  if (has_layer(false)) activations_.activated = batch(compute, layout_.features.owned().size());
  if (config_.encoder) activations_.expanded = batch(DType::kF32, config_.intermediate_size);
  if (has_layer(true)) activations_.routed = batch(DType::kF32, config_.moe.expert_count);
  if (layout_.shares_experts() && has_layer(true)) {
    const auto exchanged = [&](DType dtype, int64_t cols) {
      return backend_.allocate(Matrix{.dtype = dtype, .rows = exchanged_rows(), .cols = cols}.bytes());
    };
    activations_.all_normed = exchanged(compute, config_.hidden_size);
    activations_.all_routed = exchanged(DType::kF32, config_.moe.expert_count);
    activations_.all_sums = exchanged(DType::kF32, config_.hidden_size);
  }
  if (has_ranks() || layout_.shares_experts()) activations_.sums = batch(DType::kF32, config_.hidden_size);
  if (has_ranks()) {
    activations_.magnitudes = batch(DType::kF32, 1);
    activations_.rank_magnitudes = batch(DType::kF32, layout_.position.size);
  }
  if (!span_.last) return;
  const auto rows = [&](int64_t count, DType dtype, int64_t cols) {
    return backend_.allocate(Matrix{.dtype = dtype, .rows = count, .cols = cols}.bytes());
  };
  activations_.tail_query = rows(limits_.max_tail_rows, compute, query_width());
  activations_.tail_hidden = rows(limits_.max_tail_rows, backend_.hidden_dtype(), config_.hidden_size);
  activations_.row_hidden = rows(limits_.max_logit_rows, backend_.hidden_dtype(), config_.hidden_size);
  activations_.row_normed = rows(limits_.max_logit_rows, compute, config_.hidden_size);
  if (config_.has_output_head) {
    const int64_t slice = layout_.logit_columns;
    if (has_ranks()) activations_.logit_slice = rows(limits_.max_logit_rows, DType::kF32, slice);
    activations_.logits = rows(limits_.max_logit_rows, DType::kF32, slice * layout_.position.size);
  }
}

bool StageModel::has_layer(bool sparse) const {
  for (int32_t layer = span_.layers.begin; layer < span_.layers.end; ++layer) {
    if (config_.is_sparse(layer) == sparse) return true;
  }
  return false;
}

tensor::KvCacheShape StageModel::cache_shape(int32_t page_size, int32_t page_count) const {
  return {.layer_count = span_.layers.size(),
          .kv_head_count = layout_.kv_head_count(),
          .head_dim = config_.head_dim,
          .page_size = page_size,
          .page_count = page_count};
}

void StageModel::reserve(int32_t sequences, int32_t context, int32_t page_size) {
  std::vector<const tensor::PackedWeight*> weights;
  std::vector<const tensor::Experts*> experts;
  std::vector<tensor::AttentionShape> attention;
  for (int32_t index = 0; index < span_.layers.size(); ++index) {
    const LayerWeights& layer = weights_.layers[static_cast<size_t>(index)];
    for (const auto* weight : {&layer.qkv, &layer.output, &layer.gate_up, &layer.up, &layer.down, &layer.router}) {
      if (*weight) weights.push_back(weight->get());
    }
    if (layer.experts) experts.push_back(layer.experts.get());
    attention.push_back(attention_shape(index));
  }
  tensor::WorkBounds bounds{.rows = static_cast<int32_t>(exchanged_rows()),
                            .sequences = sequences,
                            .context = context,
                            .cache = cache_shape(page_size, 0),
                            .weights = {},
                            .experts = experts,
                            .attention = attention};
  if (span_.last) {
    if (weights_.head) weights.push_back(weights_.head.get());
    bounds.logit_rows = limits_.max_logit_rows;
    // Each of the lists that are sampled, scored or pooled may end with a block that is not full.
    bounds.logit_blocks = (limits_.max_batch_tokens + sequences) / limits_.max_logit_rows + 2;
    bounds.vocab = static_cast<int32_t>(config_.vocab_size);
  }
  bounds.weights = weights;
  backend_.reserve(bounds);
}

void StageModel::allocate_cache(int32_t page_size, int32_t page_count) {
  free_cache();
  cache_ = backend_.make_kv_cache(cache_shape(page_size, page_count));
}

uint64_t StageModel::page_bytes(int32_t page_size) const {
  return backend_.kv_page_bytes(cache_shape(page_size, 0));
}

void StageModel::free_cache() {
  replay_ = backend_.make_replay();  // recorded graphs hold addresses of the old cache
  cache_.reset();
}

tensor::KvCache& StageModel::cache() const {
  CHECK(cache_ != nullptr, "the cache is not allocated yet");
  return *cache_;
}

tensor::Buffer StageModel::allocate_hidden() {
  return backend_.allocate(
      Matrix{.dtype = backend_.hidden_dtype(), .rows = limits_.max_batch_tokens, .cols = config_.hidden_size}.bytes());
}

Matrix StageModel::hidden_view(const tensor::Buffer& buffer, int64_t rows) const {
  const Matrix view{.data = buffer.data(), .dtype = backend_.hidden_dtype(), .rows = rows, .cols = config_.hidden_size};
  CHECK(view.bytes() <= buffer.bytes(), "{} rows of hidden are {} bytes, the buffer has {}", rows, view.bytes(),
        buffer.bytes());
  return view;
}

Matrix StageModel::forward(const ForwardInput& input) {
  const int64_t rows = input.batch.row_count();
  CHECK(!has_ranks() || collective_ != nullptr, "rank {} has no exchange with the others", layout_.position.rank);
  CHECK(!layout_.shares_experts() || expert_exchange_ != nullptr, "rank {} has no exchange of experts",
        layout_.position.rank);
  CHECK(rows > 0 && rows <= limits_.max_batch_tokens, "a batch of {} rows, wanted 1 to {}", rows,
        limits_.max_batch_tokens);
  CHECK(input.hidden.rows == rows && input.hidden.cols == config_.hidden_size &&
            input.hidden.dtype == backend_.hidden_dtype(),
        "hidden is {} [{}, {}], wanted {} [{}, {}]", tensor::to_string(input.hidden.dtype), input.hidden.rows,
        input.hidden.cols, tensor::to_string(backend_.hidden_dtype()), rows, config_.hidden_size);
  CHECK(!span_.first || static_cast<int64_t>(input.tokens.size()) == rows, "{} tokens for {} rows", input.tokens.size(),
        rows);
  CHECK(input.received.empty() || (!span_.first && input.received.size() == input.hidden.bytes()),
        "{} bytes arrived for a hidden of {}", input.received.size(), input.hidden.bytes());
  const bool is_decode = input.is_decode || batch_size(input.batch).sequence_rows == 1;
  ForwardPass pass{.loads = input.loads,
                   .received = input.received,
                   .replays = is_decode && input.loads.empty(),
                   .hidden = input.hidden};
  upload_inputs(input, pass);
  if (expert_exchange_ != nullptr) (void)expert_exchange_->begin_step(input.step, true);
  if (pass.replays) {
    std::function<void()> refill;
    if (span_.first || !pass.received.empty()) refill = [this, &pass] { fill(pass); };
    graph_stats_->count(replay_->run({pass.hidden.data, pass.hidden.rows, pass.tails ? pass.tails->hidden.rows : -1},
                                     pass.batch, refill, [this, &pass] { run_layers(pass); }));
  } else {
    fill(pass);
    run_layers(pass);
    if (is_decode) graph_stats_->count(tensor::GraphOutcome::kLoading);
  }
  if (!pass.tails) return input.hidden;
  Matrix kept = pass.tails->hidden;
  kept.rows = pass.tails->count;
  return kept;
}

tensor::BatchSize StageModel::padded(const tensor::BatchSize& size, int32_t max_rows) const {
  tensor::BatchSize padded = replay_->padded(size);
  padded.rows = std::max(size.rows, std::min(padded.rows, max_rows));
  padded.sequences = std::min(padded.sequences, padded.rows);
  padded.sequence_rows = std::min(padded.sequence_rows, padded.rows);
  return padded;
}

void StageModel::upload_inputs(const ForwardInput& input, ForwardPass& pass) {
  tensor::BatchLayout batch = input.batch;
  std::span<const TokenId> tokens = input.tokens;
  if (pass.replays) {
    // The buffer has unused rows after the batch's.
    const tensor::BatchSize size = padded(batch_size(batch), limits_.max_batch_tokens);
    pass.hidden.rows = batch.padded_rows = size.rows;
    batch.padded_sequences = size.sequences;
    batch.padded_sequence_rows = size.sequence_rows;
    if (span_.first && static_cast<size_t>(size.rows) > tokens.size()) {
      pass.padded_tokens.assign(tokens.begin(), tokens.end());
      pass.padded_tokens.resize(static_cast<size_t>(size.rows), -1);  // in no table: zeros
      tokens = pass.padded_tokens;
    }
  }
  pass.batch = backend_.upload(batch);
  if (span_.first) pass.tokens = backend_.upload(tokens);
  if (span_.first && config_.encoder) {
    pass.position_rows = position_rows(batch, config_.encoder->first_position);
    pass.type_rows.assign(pass.position_rows.size(), 0);
    pass.positions = backend_.upload(pass.position_rows);
    pass.types = backend_.upload(pass.type_rows);
  }
  if (!input.tails.empty() && span_.layers.size() > 0) upload_tails(input, pass);
}

/// Initialises the residual stream, except for the embedding.
void StageModel::fill(const ForwardPass& pass) {
  if (!pass.received.empty()) backend_.copy_in(pass.received, pass.hidden.data);
}

void StageModel::run_layers(const ForwardPass& pass) {
  if (span_.first) backend_.embed(*weights_.embedding, pass.tokens, pass.hidden);
  if (span_.first && config_.encoder) {
    backend_.add_embedding(*weights_.types, pass.types, pass.hidden);
    backend_.add_embedding(*weights_.positions, pass.positions, pass.hidden);
  }
  for (int32_t index = 0; index < span_.layers.size(); ++index) {
    const LayerWeights& layer = weights_.layers[static_cast<size_t>(index)];
    const Matrix query = project_qkv(layer, index, pass);
    for (const auto& load : pass.loads) load->wait_for(index);
    if (pass.tails && index + 1 == span_.layers.size()) {
      finish_tails(layer, index, pass, query);
    } else {
      attend(layer, index, query, pass.batch, pass.hidden);
      feed_forward(layer, pass.batch, pass.hidden);
    }
  }
}

tensor::AttentionShape StageModel::attention_shape(int32_t index) const {
  const auto model_layer = static_cast<size_t>(span_.layers.begin + index);
  return {.head_count = layout_.head_count(),
          .kv_head_count = layout_.kv_head_count(),
          .head_dim = config_.head_dim,
          .scale = static_cast<float>(1.0 / std::sqrt(config_.head_dim)),
          .sliding_window = config_.sliding_windows[model_layer],
          .causal = !config_.encoder};
}

void StageModel::norm(Matrix hidden, const tensor::DeviceVector& weight, const tensor::DeviceVector* bias, Matrix out) {
  if (config_.encoder) {
    backend_.layer_norm(hidden, weight, *bias, config_.norm_epsilon, out);
  } else {
    backend_.rms_norm(hidden, weight, config_.norm_epsilon, out);
  }
}

/// Returns the queries of all rows; their keys and values go to the pages.
Matrix StageModel::project_qkv(const LayerWeights& layer, int32_t index, const ForwardPass& pass) {
  const int64_t rows = pass.hidden.rows;
  const DType compute = backend_.compute_dtype();
  const Matrix normed{.data = activations_.normed.data(), .dtype = compute, .rows = rows, .cols = config_.hidden_size};
  const Matrix qkv{
      .data = activations_.qkv.data(), .dtype = DType::kF32, .rows = rows, .cols = query_width() + 2 * kv_width()};
  const Matrix query{.data = activations_.query.data(), .dtype = compute, .rows = rows, .cols = query_width()};
  const tensor::RotaryTable rotary{.inverse_frequency = inverse_frequency_.get(),
                                   .rotary_dim = config_.head_dim,
                                   .attention_factor = attention_factor_};
  norm(pass.hidden, *layer.input_norm, layer.input_norm_bias.get(), normed);
  backend_.matmul(normed, *layer.qkv, layer.qkv_bias.get(), qkv);
  backend_.rotary_store_kv(qkv, attention_shape(index), rotary, layer.q_norm.get(), layer.k_norm.get(),
                           config_.norm_epsilon, pass.batch, cache(), index, query);
  return query;
}

void StageModel::attend(const LayerWeights& layer, int32_t index, Matrix query, const tensor::UploadedBatch& batch,
                        Matrix hidden) {
  const Matrix attended{
      .data = activations_.attended.data(), .dtype = backend_.compute_dtype(), .rows = query.rows, .cols = query.cols};
  backend_.attention(query, attention_shape(index), batch, cache(), index, attended);
  add_product(attended, *layer.output, layer.output_bias.get(), hidden);
}

void StageModel::add_product(Matrix x, const tensor::PackedWeight& weight, const tensor::DeviceVector* bias,
                             Matrix hidden) {
  if (!has_ranks()) return backend_.matmul_add(x, weight, bias, hidden);
  const Matrix sums = rank_sums(hidden.rows);
  if (weight.has_row_scales()) {
    const Matrix own{.data = activations_.magnitudes.data(), .dtype = DType::kF32, .rows = x.rows, .cols = 1};
    const Matrix all{.data = activations_.rank_magnitudes.data(),
                     .dtype = DType::kF32,
                     .rows = x.rows,
                     .cols = layout_.position.size};
    backend_.row_magnitudes(x, own);
    collective_->all_gather(own, all);
    backend_.matmul_row_scaled(x, weight, all, sums);
  } else {
    backend_.matmul(x, weight, nullptr, sums);
  }
  add_rank_sums(sums, bias, hidden);
}

Matrix StageModel::rank_sums(int64_t rows) const {
  return {.data = activations_.sums.data(), .dtype = DType::kF32, .rows = rows, .cols = config_.hidden_size};
}

void StageModel::add_rank_sums(Matrix sums, const tensor::DeviceVector* bias, Matrix hidden) {
  collective_->all_reduce(sums);
  backend_.add_sums(sums, bias, hidden);
}

void StageModel::upload_tails(const ForwardInput& input, ForwardPass& pass) {
  const size_t sequences = input.batch.sequence_count();
  CHECK(span_.last && input.tails.size() == sequences, "tails of {} sequences for {}", input.tails.size(), sequences);
  Tails& tails = pass.tails.emplace();
  for (size_t s = 0; s < sequences; ++s) {
    const int32_t begin = input.batch.row_begin[s];
    const int32_t end = input.batch.row_begin[s + 1];
    CHECK(input.tails[s] >= 0 && input.tails[s] <= end - begin, "the last {} of {} rows", input.tails[s], end - begin);
    for (int32_t row = end - input.tails[s]; row < end; ++row) tails.row_numbers.push_back(row);
    tails.row_begin.push_back(static_cast<int32_t>(tails.row_numbers.size()));
    tails.prefix.push_back(input.batch.prefix[s] + (end - begin) - input.tails[s]);
  }
  tails.count = static_cast<int64_t>(tails.row_numbers.size());
  CHECK(tails.count <= limits_.max_tail_rows, "{} rows go on, wanted at most {}", tails.count, limits_.max_tail_rows);
  tails.hidden = {.data = activations_.tail_hidden.data(),
                  .dtype = backend_.hidden_dtype(),
                  .rows = tails.count,
                  .cols = config_.hidden_size};
  if (tails.count == 0) return;
  tensor::BatchLayout batch{.row_begin = tails.row_begin,
                            .prefix = tails.prefix,
                            .page_begin = input.batch.page_begin,
                            .pages = input.batch.pages};
  if (pass.replays) {
    // The bounds of all rows except their count, so that all steps share one key.
    batch.padded_sequences = pass.batch.layout.padded_sequences;
    batch.padded_sequence_rows = pass.batch.layout.padded_sequence_rows;
    const auto count = static_cast<int32_t>(tails.count);
    batch.padded_rows = padded({count, batch.padded_sequences, batch.padded_sequence_rows}, limits_.max_tail_rows).rows;
    tails.row_numbers.resize(static_cast<size_t>(batch.padded_rows), -1);
    tails.hidden.rows = batch.padded_rows;
  }
  tails.rows = backend_.upload(tails.row_numbers);
  tails.batch = backend_.upload(batch);
}

/// Finishes the last layer for the last rows of each sequence.
void StageModel::finish_tails(const LayerWeights& layer, int32_t index, const ForwardPass& pass, Matrix query) {
  const Tails& tails = *pass.tails;
  if (tails.hidden.rows == 0) {
    if (expert_exchange_ != nullptr) exchange_without_rows(layer);
    return;
  }
  const Matrix tail_query{
      .data = activations_.tail_query.data(), .dtype = query.dtype, .rows = tails.hidden.rows, .cols = query.cols};
  backend_.gather_rows(pass.hidden, tails.rows, tails.hidden);
  backend_.gather_rows(query, tails.rows, tail_query);
  attend(layer, index, tail_query, tails.batch, tails.hidden);
  feed_forward(layer, tails.batch, tails.hidden);
}

void StageModel::feed_forward(const LayerWeights& layer, const tensor::UploadedBatch& batch, Matrix hidden) {
  const DType compute = backend_.compute_dtype();
  const Matrix normed{
      .data = activations_.normed.data(), .dtype = compute, .rows = hidden.rows, .cols = config_.hidden_size};
  norm(hidden, *layer.mlp_norm, layer.mlp_norm_bias.get(), normed);
  if (layer.experts) {
    const Matrix routed{.data = activations_.routed.data(),
                        .dtype = DType::kF32,
                        .rows = hidden.rows,
                        .cols = config_.moe.expert_count};
    backend_.matmul(normed, *layer.router, nullptr, routed);
    if (expert_exchange_ != nullptr) return exchange_experts(layer, normed, routed, hidden);
    if (!has_ranks()) return backend_.fused_moe(normed, routed, *layer.experts, batch, hidden);
    const Matrix sums = rank_sums(hidden.rows);
    backend_.fused_moe_sums(normed, routed, *layer.experts, batch, sums);
    add_rank_sums(sums, nullptr, hidden);
    return;
  }
  const Matrix activated{.data = activations_.activated.data(),
                         .dtype = compute,
                         .rows = hidden.rows,
                         .cols = layout_.features.owned().size()};
  if (config_.encoder) {
    const Matrix expanded{.data = activations_.expanded.data(),
                          .dtype = DType::kF32,
                          .rows = hidden.rows,
                          .cols = config_.intermediate_size};
    backend_.matmul(normed, *layer.up, layer.up_bias.get(), expanded);
    backend_.gelu(expanded, activated);
  } else {
    backend_.matmul_silu_mul(normed, *layer.gate_up, activated);
  }
  add_product(activated, *layer.down, layer.down_bias.get(), hidden);
}

void StageModel::exchange_experts(const LayerWeights& layer, Matrix normed, Matrix routed, Matrix hidden) {
  Matrix all_normed{.data = activations_.all_normed.data(),
                    .dtype = normed.dtype,
                    .rows = exchanged_rows(),
                    .cols = config_.hidden_size};
  Matrix all_routed{.data = activations_.all_routed.data(),
                    .dtype = DType::kF32,
                    .rows = exchanged_rows(),
                    .cols = config_.moe.expert_count};
  const int64_t rows = expert_exchange_->dispatch(normed, routed, all_normed, all_routed);
  all_normed.rows = all_routed.rows = rows;
  if (rows == 0) return;
  const Matrix all_sums{
      .data = activations_.all_sums.data(), .dtype = DType::kF32, .rows = rows, .cols = config_.hidden_size};
  // One sequence without pages: the experts only ask how many rows there are.
  const std::array<int32_t, 2> row_begin{0, static_cast<int32_t>(rows)};
  const std::array<int32_t, 1> prefix{0};
  const std::array<int32_t, 2> page_begin{0, 0};
  const tensor::UploadedBatch batch = backend_.upload(
      tensor::BatchLayout{.row_begin = row_begin, .prefix = prefix, .page_begin = page_begin, .pages = {}});
  backend_.fused_moe_sums(all_normed, all_routed, *layer.experts, batch, all_sums);
  const Matrix sums = rank_sums(hidden.rows);
  expert_exchange_->combine(all_sums, sums);
  if (hidden.rows > 0) backend_.add_sums(sums, nullptr, hidden);
}

void StageModel::exchange_without_rows(const LayerWeights& layer) {
  if (!layer.experts) return;
  const Matrix normed{
      .data = activations_.normed.data(), .dtype = backend_.compute_dtype(), .rows = 0, .cols = config_.hidden_size};
  const Matrix routed{
      .data = activations_.routed.data(), .dtype = DType::kF32, .rows = 0, .cols = config_.moe.expert_count};
  exchange_experts(layer, normed, routed,
                   {.data = nullptr, .dtype = backend_.hidden_dtype(), .rows = 0, .cols = config_.hidden_size});
}

void StageModel::step_without_rows(uint64_t step) {
  CHECK(expert_exchange_ != nullptr, "rank {} has no exchange of experts", layout_.position.rank);
  if (!expert_exchange_->begin_step(step, false)) return;
  for (const LayerWeights& layer : weights_.layers) exchange_without_rows(layer);
}

void StageModel::normed_rows(Matrix hidden, std::span<const int32_t> rows, const BlockFn& block) {
  CHECK(span_.last, "the final norm of a stage that is not the last");
  const auto largest = static_cast<size_t>(limits_.max_logit_rows);
  for (size_t first = 0; first < rows.size(); first += largest) {
    const auto part = rows.subspan(first, std::min(largest, rows.size() - first));
    const auto count = static_cast<int64_t>(part.size());
    const Matrix gathered{.data = activations_.row_hidden.data(),
                          .dtype = backend_.hidden_dtype(),
                          .rows = count,
                          .cols = config_.hidden_size};
    const Matrix normed{.data = activations_.row_normed.data(),
                        .dtype = backend_.compute_dtype(),
                        .rows = count,
                        .cols = config_.hidden_size};
    backend_.gather_rows(hidden, backend_.upload(part), gathered);
    norm(gathered, *weights_.final_norm, weights_.final_norm_bias.get(), normed);
    block(first, normed);
  }
}

void StageModel::logits(Matrix hidden, std::span<const int32_t> rows, const BlockFn& block) {
  CHECK(rows.empty() || config_.has_output_head, "logits of a stage without the output head");
  normed_rows(hidden, rows, [&](size_t first, Matrix normed) {
    const int64_t slice = layout_.logit_columns;
    const Matrix logits{.data = activations_.logits.data(),
                        .dtype = DType::kF32,
                        .rows = normed.rows,
                        .cols = slice * layout_.position.size};
    Matrix own = logits;
    if (has_ranks())
      own = {.data = activations_.logit_slice.data(), .dtype = DType::kF32, .rows = normed.rows, .cols = slice};
    backend_.matmul(normed, *weights_.head, nullptr, own);
    if (has_ranks()) collective_->all_gather(own, logits);
    block(first, logits);
  });
}

}  // namespace millrace::model
