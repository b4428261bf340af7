#include "model/stage_model.h"

#include <algorithm>

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

/// Returns the rows of `rows` with the pages of `pages`.
tensor::BatchLayout with_pages_of(const tensor::BatchLayout& pages, tensor::BatchLayout rows) {
  rows.page_begin = pages.page_begin;
  rows.pages = pages.pages;
  return rows;
}

/// Returns the limits of a stage's layers: only the last stage has tails.
StageLimits of_layers(StageSpan span, StageLimits limits) {
  if (!span.last) limits.max_tail_rows = 0;
  return limits;
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

/// Returns the row of each token in a table of `row_count` types.
std::vector<int32_t> type_rows(const ForwardInput& input, int32_t row_count) {
  const tensor::BatchLayout& batch = input.batch;
  std::vector<int32_t> rows(static_cast<size_t>(batch.row_count()), 0);
  for (size_t s = 0; s < input.second_texts.size() && row_count > 1; ++s) {
    const int32_t second = input.second_texts[s];
    const int32_t begin = batch.row_begin[s];
    for (int32_t row = begin; row < batch.row_begin[s + 1]; ++row)
      rows[static_cast<size_t>(row)] = second > 0 && batch.prefix[s] + row - begin >= second ? 1 : 0;
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
  std::vector<tensor::UploadedBatch> batches;  // [groups]
  Matrix hidden;                               // [row_numbers, hidden]
  int64_t count = 0;                           // of its rows, without padding
};

/// One forward pass with its inputs uploaded.
struct StageModel::ForwardPass {
  std::span<const std::shared_ptr<tensor::LayerGate>> loads;
  std::span<const std::byte> received;
  bool replays = false;
  Matrix hidden;                               // with padding
  std::vector<tensor::UploadedBatch> batches;  // [groups]
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
  return std::unique_ptr<StageModel>(new StageModel(config, span, backend, limits,
                                                    rank_layout(config, options.position, options.experts),
                                                    std::make_shared<const StageWeights>(std::move(*weights))));
}

std::unique_ptr<StageModel> StageModel::share(tensor::Backend& backend) const {
  CHECK(backend_.is_host() && backend.kv_format() == backend_.kv_format(), "{} cannot use weights of {}",
        backend.kv_format(), backend_.kv_format());
  return std::unique_ptr<StageModel>(new StageModel(config_, span_, backend, limits_, layout_, weights_));
}

StageModel::StageModel(const ModelConfig& config, StageSpan span, tensor::Backend& backend, StageLimits limits,
                       const RankLayout& layout, std::shared_ptr<const StageWeights> weights)
    : config_(config),
      span_(span),
      backend_(backend),
      limits_(limits),
      layout_(layout),
      weights_(std::move(weights)),
      runner_(config_, span_.layers, backend_, layout_, weights_->layers, of_layers(span, limits)),
      caches_(config_, span_.layers, backend_, layout_) {
  if (weights_->layer_inputs)
    layer_inputs_.emplace(config_, span_, backend_, *weights_, limits_.max_batch_tokens,
                          span_.last ? limits_.max_tail_rows : 0);
  replay_ = backend_.make_replay();
  if (!span_.last) return;
  tail_hidden_ = backend_.allocate(
      Matrix{.dtype = backend_.hidden_dtype(), .rows = limits_.max_tail_rows, .cols = config_.hidden_size}.bytes());
  head_.emplace(config_, backend_, layout_, *weights_, runner_.stream(), limits_.max_logit_rows);
}

void StageModel::set_collective(tensor::Collective* collective) {
  CHECK(collective == nullptr || collective->position() == layout_.position,
        "a collective of rank {} of {}, wanted {} of {}", collective->position().rank, collective->position().size,
        layout_.position.rank, layout_.position.size);
  replay_ = backend_.make_replay();  // recorded graphs call the old one
  collective_ = collective;
  runner_.set_collective(collective);
  if (head_) head_->set_collective(collective);
}

void StageModel::set_expert_exchange(tensor::ExpertExchange* exchange) {
  CHECK(exchange == nullptr || exchange->position() == layout_.experts,
        "an exchange of position {} of {}, wanted {} of {}", exchange->position().rank, exchange->position().size,
        layout_.experts.rank, layout_.experts.size);
  runner_.feed_forward().set_expert_exchange(exchange);
  expert_exchange_ = exchange;
}

void StageModel::reserve(int32_t sequences, int32_t context, int32_t page_size) {
  std::vector<const tensor::PackedWeight*> weights;
  std::vector<const tensor::Experts*> experts;
  std::vector<tensor::AttentionShape> attention;
  std::vector<tensor::LatentShape> latents;
  int32_t max_state_rows = 0;
  for (int32_t index = 0; index < span_.layers.size(); ++index) {
    const LayerWeights& layer = weights_->layers[static_cast<size_t>(index)];
    const auto add = [&weights](std::initializer_list<const std::unique_ptr<tensor::PackedWeight>*> some) {
      for (const auto* weight : some)
        if (*weight) weights.push_back(weight->get());
    };
    add({&layer.input_gate, &layer.input_projection, &layer.experts_input, &layer.experts_output});
    add({&layer.qkv, &layer.output, &layer.gate_up, &layer.up, &layer.down, &layer.router, &layer.shared_expert_gate,
         &layer.query_gate});
    if (layer.experts) experts.push_back(layer.experts.get());
    if (layer.recurrent) {
      add({&layer.recurrent->input, &layer.recurrent->steps, &layer.recurrent->output});
      for (const LowRankWeights* pair : {&layer.recurrent->decays, &layer.recurrent->gates}) add({&pair->a, &pair->b});
      max_state_rows = std::max(max_state_rows, state_rows(*runner_.layer_config(index).recurrent));
    }
    if (layer.latent) {
      add({&layer.latent->query_a, &layer.latent->query, &layer.latent->latent});
      if (const auto& indexer = layer.latent->indexer) add({&indexer->query, &indexer->key, &indexer->weights});
      latents.push_back(latent_shape(runner_.layer_config(index).attention, runner_.layer_layout(index).head_count()));
    } else if (runner_.layer_config(index).attends) {
      attention.push_back(runner_.attention_shape(index));
    }
  }
  tensor::KvCacheShape cache = caches_.shape(page_size, 0, 0);
  cache.layer_count = span_.layers.size();
  tensor::WorkBounds bounds{.rows = limits_.max_batch_tokens,
                            .expert_rows = static_cast<int32_t>(runner_.feed_forward().exchanged_rows()),
                            .row_lookups = layer_inputs_ ? span_.layers.size() : 1,
                            .sequences = sequences,
                            .context = context,
                            .cache = cache,
                            .weights = {},
                            .experts = experts,
                            .attention = attention,
                            .latent_attention = latents,
                            .indexer = indexer_shape(config_),
                            .state_rows = max_state_rows};
  if (layer_inputs_) weights.push_back(weights_->layer_inputs->projection.get());
  if (span_.last) {
    if (weights_->head) weights.push_back(weights_->head.get());
    bounds.logit_rows = limits_.max_logit_rows;
    // Each of the lists that are sampled, scored or pooled may end with a block that is not full.
    bounds.logit_blocks = (limits_.max_batch_tokens + sequences) / limits_.max_logit_rows + 2;
    bounds.vocab = static_cast<int32_t>(config_.vocab_size);
  }
  bounds.weights = weights;
  backend_.reserve(bounds);
}

void StageModel::allocate_cache(int32_t page_size, std::span<const uint32_t> page_counts) {
  free_cache();
  caches_.allocate(page_size, page_counts);
}

void StageModel::allocate_cache(int32_t page_size, int32_t page_count) {
  allocate_cache(page_size, std::vector<uint32_t>(caches_.groups().count(), static_cast<uint32_t>(page_count)));
}

void StageModel::free_cache() {
  replay_ = backend_.make_replay();  // recorded graphs hold addresses of the old cache
  caches_.clear();
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
  CHECK(!takes_tokens() || static_cast<int64_t>(input.tokens.size()) == rows, "{} tokens for {} rows",
        input.tokens.size(), rows);
  CHECK(input.received.empty() || (!span_.first && input.received.size() == input.hidden.bytes()),
        "{} bytes arrived for a hidden of {}", input.received.size(), input.hidden.bytes());
  const bool is_decode = input.is_decode || batch_size(input.batch).sequence_rows == 1;
  ForwardPass pass{.loads = input.loads,
                   .received = input.received,
                   .replays = is_decode && input.loads.empty() && expert_exchange_ == nullptr,
                   .hidden = input.hidden};
  upload_inputs(input, pass);
  if (expert_exchange_ != nullptr) (void)runner_.feed_forward().begin_step(input.step, true);
  if (pass.replays) {
    std::function<void()> refill;
    if (span_.first || !pass.received.empty()) refill = [this, &pass] { fill(pass); };
    const tensor::ReplayKey key{pass.hidden.data, pass.hidden.rows, pass.tails ? pass.tails->hidden.rows : -1,
                                pass.batches.front().layout.padded_context};
    graph_stats_->count(replay_->run(key, pass.batches.front(), refill, [this, &pass] { run_layers(pass); }));
  } else {
    fill(pass);
    run_layers(pass);
    const bool is_cut = expert_exchange_ != nullptr;  // the host exchanges rows in the middle of the ops
    if (is_decode) graph_stats_->count(is_cut ? tensor::GraphOutcome::kOff : tensor::GraphOutcome::kLoading);
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
    if (const auto chosen = chosen_tokens(config_)) batch.padded_context = padded_context(batch, *chosen);
    if (takes_tokens() && static_cast<size_t>(size.rows) > tokens.size()) {
      pass.padded_tokens.assign(tokens.begin(), tokens.end());
      pass.padded_tokens.resize(static_cast<size_t>(size.rows), -1);  // in no table: zeros
      tokens = pass.padded_tokens;
    }
  }
  CHECK(input.windows.empty() || input.windows.size() + 1 == caches_.groups().count(),
        "pages of {} window groups, wanted {}", input.windows.size(), caches_.groups().count() - 1);
  pass.batches.push_back(backend_.upload(batch));
  for (size_t i = 0; i + 1 < caches_.groups().count(); ++i) {
    pass.batches.push_back(input.windows.empty() ? pass.batches.front()
                                                 : backend_.upload(with_pages_of(input.windows[i], batch)));
  }
  if (takes_tokens()) pass.tokens = backend_.upload(tokens);
  if (layer_inputs_) layer_inputs_->upload(tokens);
  if (span_.first && config_.encoder) {
    pass.position_rows = position_rows(batch, config_.encoder->first_position);
    pass.type_rows = type_rows(input, config_.encoder->type_rows);
    pass.type_rows.resize(pass.position_rows.size(), 0);
    pass.positions = backend_.upload(pass.position_rows);
    pass.types = backend_.upload(pass.type_rows);
  }
  if (!input.tails.empty() && span_.layers.size() > 0) upload_tails(input, pass);
}

/// Initialises the residual stream, except for the embedding.
void StageModel::fill(const ForwardPass& pass) {
  if (!pass.received.empty()) backend_.copy_in(pass.received, pass.hidden.data);
}

void StageModel::wait_for_loads(const ForwardPass& pass, int32_t index) {
  for (const auto& load : pass.loads) load->wait_for(index);
}

void StageModel::run_layers(const ForwardPass& pass) {
  if (span_.first) backend_.embed(*weights_->embedding, pass.tokens, pass.hidden);
  if (span_.first && config_.encoder) {
    backend_.add_embedding(*weights_->types, pass.types, pass.hidden);
    backend_.add_embedding(*weights_->positions, pass.positions, pass.hidden);
  }
  if (span_.first && config_.embedding_scale != 1.0f) backend_.scale(pass.hidden, config_.embedding_scale);
  if (layer_inputs_ && span_.first) layer_inputs_->compute(pass.hidden);
  if (layer_inputs_ && !span_.first) layer_inputs_->compute(pass.tokens);
  const int32_t whole_layers = pass.tails ? caches_.last_storing() : span_.layers.size();
  for (int32_t index = 0; index < whole_layers; ++index) {
    const BegunLayer begun = begin_layer(pass, index);
    runner_.finish(index, begun, caches_.of_layer(index, pass.batches, own_inputs()), pass.hidden);
  }
  if (pass.tails) run_tails(pass);
}

BegunLayer StageModel::begin_layer(const ForwardPass& pass, int32_t index) {
  const LayerCaches kept = caches_.of_layer(index, pass.batches, {});
  const bool begins_with_reads = runner_.begins_with_reads(index);
  if (begins_with_reads) wait_for_loads(pass, index);
  const BegunLayer begun = runner_.begin(index, pass.hidden, kept);
  if (!begins_with_reads) wait_for_loads(pass, index);
  return begun;
}

/// Runs the layers from the last one that stores keys and values. What they compute after that, no other row sees.
void StageModel::run_tails(const ForwardPass& pass) {
  const Tails& tails = *pass.tails;
  const bool has_rows = tails.hidden.rows > 0;
  const Matrix inputs = layer_inputs_ && has_rows ? layer_inputs_->gathered(tails.rows, tails.hidden.rows) : Matrix{};
  const BegunLayer first = begin_layer(pass, caches_.last_storing());
  for (int32_t index = caches_.last_storing(); index < span_.layers.size(); ++index) {
    if (!has_rows) {
      if (expert_exchange_ != nullptr) runner_.feed_forward().exchange_without_rows(index);
      continue;
    }
    const LayerCaches kept = caches_.of_layer(index, tails.batches, inputs);
    if (index == caches_.last_storing())
      runner_.finish_tails(index, first, pass.hidden, tails.rows, kept, tails.hidden);
    else
      runner_.finish(index, runner_.begin(index, tails.hidden, kept), kept, tails.hidden);
  }
}

Matrix StageModel::own_inputs() const {
  return layer_inputs_ ? layer_inputs_->all() : Matrix{};
}

void StageModel::step_without_rows(uint64_t step) {
  CHECK(expert_exchange_ != nullptr, "rank {} has no exchange of experts", layout_.position.rank);
  if (!runner_.feed_forward().begin_step(step, false)) return;
  for (int32_t index = 0; index < span_.layers.size(); ++index) runner_.feed_forward().exchange_without_rows(index);
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
  tails.hidden = {
      .data = tail_hidden_.data(), .dtype = backend_.hidden_dtype(), .rows = tails.count, .cols = config_.hidden_size};
  if (tails.count == 0) return;
  tensor::BatchLayout batch{.row_begin = tails.row_begin,
                            .prefix = tails.prefix,
                            .page_begin = input.batch.page_begin,
                            .pages = input.batch.pages};
  if (pass.replays) {
    // The bounds of all rows except their count, so that all steps share one key.
    const tensor::BatchLayout& all = pass.batches.front().layout;
    batch.padded_sequences = all.padded_sequences;
    batch.padded_sequence_rows = all.padded_sequence_rows;
    const auto count = static_cast<int32_t>(tails.count);
    batch.padded_rows = padded({count, batch.padded_sequences, batch.padded_sequence_rows}, limits_.max_tail_rows).rows;
    tails.row_numbers.resize(static_cast<size_t>(batch.padded_rows), -1);
    tails.hidden.rows = batch.padded_rows;
  }
  tails.rows = backend_.upload(tails.row_numbers);
  for (const tensor::UploadedBatch& all : pass.batches) {
    tails.batches.push_back(backend_.upload(with_pages_of(all.layout, batch)));
  }
}

void StageModel::normed_rows(Matrix hidden, std::span<const int32_t> rows, const BlockFn& block) {
  CHECK(head_.has_value(), "the final norm of a stage that is not the last");
  head_->normed_rows(hidden, rows, block);
}

void StageModel::logits(Matrix hidden, std::span<const int32_t> rows, const BlockFn& block) {
  CHECK(head_.has_value(), "logits of a stage that is not the last");
  head_->logits(hidden, rows, block);
}

}  // namespace millrace::model
