#include "sched/stage/model_runner.h"

#include <algorithm>
#include <utility>

#include "async/event.h"
#include "sched/stage/stage_inputs.h"

namespace millrace::sched {

/// The rows whose logits a batch needs: first those to sample, then those to score.
struct ModelRunner::LogitRows {
  std::vector<int32_t> rows;   // indices into the rows that the forward pass returns
  std::vector<int32_t> tails;  // per slice, ForwardInput::tails; empty: the forward pass returns all rows
  size_t sample_count = 0;
  std::vector<size_t> slice_of;     // per row
  std::vector<TokenId> targets;     // per scored row
  std::vector<int32_t> top_counts;  // per scored row
  // The rows that are pooled, which need no logits.
  std::vector<int32_t> pooled;          // indices as in `rows`
  std::vector<size_t> pooled_slice_of;  // per pooled row
};

/// The samples and scores of the last stage, valid when the run is complete.
struct ModelRunner::SamplingResults {
  LogitRows wanted;
  std::vector<tensor::SampleResult> samples;  // [wanted.sample_count]
  std::vector<tensor::ScoreResult> scores;    // [wanted.targets]
  std::span<std::byte> pooled;                // compute [wanted.pooled, hidden]
};

ModelRunner::LogitRows ModelRunner::logit_rows(const StageBatch& batch) {
  LogitRows wanted;
  for (size_t s = 0; s < batch.slices.size(); ++s) {
    for (auto left = static_cast<int32_t>(batch.slices[s].sample_count()); left > 0; --left) {
      wanted.rows.push_back(batch.layout.row_begin[s + 1] - left);
      wanted.slice_of.push_back(s);
    }
  }
  wanted.sample_count = wanted.rows.size();
  for (size_t s = 0; s < batch.slices.size(); ++s) {
    const PlanSlice& slice = batch.slices[s];
    if (slice.prompt_top_logprobs < 0) continue;
    for (int32_t row = batch.layout.row_begin[s]; row < batch.layout.row_begin[s + 1]; ++row) {
      const bool last_row = row + 1 == batch.layout.row_begin[s + 1];
      const TokenId target = last_row ? slice.next_token : batch.tokens[static_cast<size_t>(row) + 1];
      if (target < 0) continue;
      wanted.rows.push_back(row);
      wanted.slice_of.push_back(s);
      wanted.targets.push_back(target);
      wanted.top_counts.push_back(slice.prompt_top_logprobs);
    }
  }
  for (size_t s = 0; s < batch.slices.size(); ++s) {
    const int32_t first = batch.layout.row_begin[s] + static_cast<int32_t>(Pooler::first_row(batch.slices[s]));
    for (uint32_t i = 0; i < Pooler::row_count(batch.slices[s]); ++i) {
      wanted.pooled.push_back(first + static_cast<int32_t>(i));
      wanted.pooled_slice_of.push_back(s);
    }
  }
  return wanted;
}

/// Restricts the last layer to the last rows of each slice that are sampled, scored or pooled, if these are at most
/// `most` rows.
void ModelRunner::trim_to_tail_rows(const StageBatch& batch, size_t most, LogitRows& wanted) {
  std::vector<int32_t> tails;
  std::vector<int32_t> shift;  // per slice: by how much a row's index shrinks
  int32_t kept = 0;
  for (size_t s = 0; s < batch.slices.size(); ++s) {
    tails.push_back(static_cast<int32_t>(batch.slices[s].tail_rows()));
    kept += tails.back();
    shift.push_back(batch.layout.row_begin[s + 1] - kept);
  }
  if (static_cast<size_t>(kept) > most) return;
  for (size_t i = 0; i < wanted.rows.size(); ++i) wanted.rows[i] -= shift[wanted.slice_of[i]];
  for (size_t i = 0; i < wanted.pooled.size(); ++i) wanted.pooled[i] -= shift[wanted.pooled_slice_of[i]];
  wanted.tails = std::move(tails);
}

namespace {

/// The largest matrices that a rank's end of a collective keeps on a device, at most.
constexpr size_t kExchangedMatrices = 5;

tensor::Matrix row_range(tensor::Matrix matrix, size_t begin, size_t end) {
  const size_t row_bytes = static_cast<size_t>(matrix.cols) * tensor::size_of(matrix.dtype);
  return {matrix.data + begin * row_bytes, matrix.dtype, static_cast<int64_t>(end - begin), matrix.cols};
}

}  // namespace

size_t ModelRunner::max_exchange_bytes(const model::StageModel& model) {
  const model::StageLimits limits = model.limits();
  const auto rows = static_cast<size_t>(limits.max_batch_tokens);
  const size_t sums = rows * static_cast<size_t>(model.config().hidden_size);
  const model::RankLayout& rank = model.rank();
  const size_t logits =
      static_cast<size_t>(limits.max_logit_rows) * static_cast<size_t>(rank.logit_columns * rank.position.size);
  return sizeof(float) * std::max(sums, model.span().last ? logits : 0);
}

uint64_t ModelRunner::device_bytes(const model::StageModel& model, bool receives_on_device) {
  const size_t largest = model.hidden_view({}, 0).cols * tensor::size_of(model.backend().hidden_dtype()) *
                         static_cast<size_t>(model.limits().max_batch_tokens);
  const size_t whole = largest * (2 + (receives_on_device ? StageInputs::kBufferedPlans : 0));
  const auto ranks = static_cast<size_t>(model.rank().position.size);
  if (ranks == 1) return whole;
  return whole + 3 * largest / ranks + kExchangedMatrices * max_exchange_bytes(model);
}

ModelRunner::ModelRunner(async::Runtime& runtime, std::unique_ptr<model::StageModel>&& model, const Options& options,
                         std::vector<std::unique_ptr<cache::PageStore>> stores)
    : runtime_(runtime),
      vocab_size_(options.vocab_size),
      slices_(model->rank().position, model->rank().position.size, model->config().hidden_size),
      stores_(std::move(stores)) {
  tensor::Backend& backend = model->backend();
  if (!backend.is_host()) graph_stats_ = model->graph_stats();
  for (size_t group = 0; group < options.host_page_counts.size(); ++group) {
    HostPages& host = host_pages_.emplace_back();
    if (options.host_page_counts[group] == 0 || !model->has_cache(group)) continue;
    host.page_bytes = model->cache(group).page_bytes();
    host.pages = backend.allocate_host(options.host_page_counts[group] * host.page_bytes);
  }
  for (size_t i = 0; i < options.output_buffers; ++i) hidden_.push_back(model->allocate_hidden());
  row_bytes_ = model->hidden_view(hidden_[0], 1).bytes();
  const size_t slice_bytes = slices_.row_bytes(backend.hidden_dtype());
  gathers_input_ = options.slices_input && slices_.sliced() && !model->span().first;
  const bool packs_output = options.slices_output && slices_.sliced() && !model->span().last;
  if (!model->span().first) input_row_bytes_ = gathers_input_ ? slice_bytes : row_bytes_;
  if (!model->span().last) output_row_bytes_ = packs_output ? slice_bytes : row_bytes_;
  const auto max_rows = static_cast<size_t>(model->limits().max_batch_tokens);
  for (size_t i = 0; packs_output && i < options.output_buffers; ++i) {
    packed_.push_back(backend.allocate(max_rows * slice_bytes));
  }
  if (!model->span().last && !backend.is_host() && options.activations_to_host) {
    for (size_t i = 0; i < options.output_buffers; ++i) {
      host_copies_.push_back(backend.allocate_host(max_rows * output_row_bytes_));
    }
  }
  if (gathers_input_ && !backend.is_host()) received_ = backend.allocate(max_rows * slice_bytes);
  model_ = std::move(model);
}

asio::awaitable<StageRunner::Result> ModelRunner::run(const StageBatch& batch, std::span<const std::byte> input) {
  const tensor::Matrix hidden = model_->hidden_view(hidden_[++next_buffer_ % hidden_.size()], batch.layout.row_count());
  SamplingResults drawn;
  if (makes_outputs()) drawn.pooled = memory_for_pooled_rows(batch);
  const async::Event done(runtime_);
  const LayerGates loads = std::exchange(loads_, {});
  model_->backend().submit([&] { compute(batch, input, hidden, loads, drawn); },
                           [done](std::exception_ptr failure) { done.set(std::move(failure)); });
  co_await done.wait();
  Result result;
  if (model_->span().last) {
    if (makes_outputs()) result.outputs = outputs(batch, std::move(drawn));
  } else {
    const tensor::Matrix sent = sent_of(hidden);
    const auto copy = host_copy_of(sent);
    result.activations = copy.empty() ? std::span(sent.data, sent.bytes()) : copy;
  }
  co_return result;
}

std::unique_ptr<model::StageModel> ModelRunner::release_model() {
  model_->set_collective(nullptr);
  model_->set_expert_exchange(nullptr);
  return std::move(model_);
}

void ModelRunner::set_collective(std::unique_ptr<tensor::Collective> collective) {
  model_->set_collective(collective.get());
  collective_ = std::move(collective);
}

void ModelRunner::set_expert_exchange(std::unique_ptr<tensor::ExpertExchange> exchange) {
  // The memory of the last epoch's exchange is free before the next one reserves its own.
  model_->set_expert_exchange(nullptr);
  expert_exchange_.reset();
  model_->set_expert_exchange(exchange.get());
  expert_exchange_ = std::move(exchange);
}

asio::awaitable<void> ModelRunner::step_without_rows(uint64_t step) {
  if (!expert_exchange_) co_return co_await StageRunner::step_without_rows(step);
  const async::Event done(runtime_);
  model_->backend().submit([&] { model_->step_without_rows(step); },
                           [done](std::exception_ptr failure) { done.set(std::move(failure)); });
  co_await done.wait();
}

/// Returns the activations that this run sends on: all columns, or this rank's in memory of their own.
tensor::Matrix ModelRunner::sent_of(tensor::Matrix hidden) const {
  return packed_.empty() ? hidden : slice_of(packed_[next_buffer_ % packed_.size()].data(), hidden);
}

/// Returns where what this run sends is copied for a link; empty when the link reads it in place.
std::span<std::byte> ModelRunner::host_copy_of(tensor::Matrix sent) const {
  if (host_copies_.empty() || output_memory_ == Memory::kDevice) return {};
  return {host_copies_[next_buffer_ % host_copies_.size()].data(), sent.bytes()};
}

std::span<std::byte> ModelRunner::input_memory(size_t bytes, Memory where) {
  tensor::Backend& backend = model_->backend();
  tensor::Buffer& inputs = inputs_[static_cast<size_t>(where)];
  if (inputs.bytes() < bytes) {
    inputs = where == Memory::kDevice ? backend.allocate(bytes) : backend.allocate_host(bytes);
  }
  return {inputs.data(), bytes};
}

std::span<std::byte> ModelRunner::host_page(uint32_t group, HostPageId page) {
  const HostPages& host = host_pages_[group];
  return {host.pages.data() + page.value() * host.page_bytes, host.page_bytes};
}

async::Event ModelRunner::begin_load(std::vector<cache::PageCopy> loads) {
  const async::Event done(runtime_);
  const auto gate = loads_.emplace_back(model_->backend().make_layer_gate());
  GroupTransfers pages(host_pages_.size());
  for (const cache::PageCopy& copy : loads) add_transfers(copy, pages[copy.group]);
  model_->backend().submit_copy(
      tensor::CopyDirection::kToDevice, [this, gate, pages = std::move(pages)] { load_layers(pages, *gate); },
      [done](std::exception_ptr failure) { done.set(std::move(failure)); });
  return done;
}

void ModelRunner::add_transfers(const cache::PageCopy& copy, std::vector<tensor::PageTransfer>& transfers) {
  for (size_t i = 0; i < copy.device.size(); ++i) {
    transfers.push_back({copy.device[i], host_page(copy.group, copy.host[i]).data()});
  }
}

void ModelRunner::load_layers(const GroupTransfers& pages, tensor::LayerGate& gate) {
  try {
    for (int32_t index = 0; index < model_->span().layers.size(); ++index) {
      for (const auto& [group, layer] : model_->cache_layers(index)) {
        if (!pages[group].empty()) model_->cache(group).write_layer(layer, pages[group]);
      }
      gate.open(index);
    }
  } catch (...) {
    gate.fail();  // otherwise the run that waits for it never ends
    throw;
  }
}

asio::awaitable<void> ModelRunner::store_pages(const cache::PageCopy& copy) {
  if (!model_->has_cache(copy.group)) co_return;
  const async::Event done(runtime_);
  std::vector<tensor::PageTransfer> pages;
  add_transfers(copy, pages);
  model_->backend().submit_copy(
      tensor::CopyDirection::kToHost, [&] { model_->cache(copy.group).read_pages(pages); },
      [done](std::exception_ptr failure) { done.set(std::move(failure)); });
  co_await done.wait();
}

void ModelRunner::compute(const StageBatch& batch, std::span<const std::byte> input, tensor::Matrix hidden,
                          const LayerGates& loads, SamplingResults& drawn) {
  const bool decodes = std::ranges::all_of(batch.slices, &PlanSlice::decodes);
  std::vector<int32_t> second_texts;
  for (const PlanSlice& slice : batch.slices) second_texts.push_back(static_cast<int32_t>(slice.second_text));
  if (gathers_input_) input = gathered(input, hidden);
  const bool last = model_->span().last;
  if (last) {
    drawn.wanted = logit_rows(batch);
    trim_to_tail_rows(batch, static_cast<size_t>(model_->limits().max_tail_rows), drawn.wanted);
  }
  const tensor::Matrix kept = model_->forward({.tokens = batch.tokens,
                                               .batch = batch.layout,
                                               .hidden = hidden,
                                               .loads = loads,
                                               .tails = drawn.wanted.tails,
                                               .received = input,
                                               .is_decode = decodes,
                                               .step = batch.step,
                                               .windows = batch.windows,
                                               .second_texts = second_texts});
  if (!last) {
    const tensor::Matrix sent = sent_of(hidden);
    if (!packed_.empty()) slices_.pack(model_->backend(), hidden, sent);
    if (const auto copy = host_copy_of(sent); !copy.empty()) model_->backend().copy_out(sent.data, copy);
    return;
  }
  project(batch, kept, drawn);
  if (makes_outputs()) copy_pooled_rows(kept, drawn);
}

/// Returns this rank's columns of `hidden` in memory of their own.
tensor::Matrix ModelRunner::slice_of(std::byte* data, tensor::Matrix hidden) const {
  return {.data = data, .dtype = hidden.dtype, .rows = hidden.rows, .cols = slices_.columns()};
}

/// Gathers the columns that all ranks have received into `hidden`. Returns the input of the forward pass: none.
std::span<const std::byte> ModelRunner::gathered(std::span<const std::byte> input, tensor::Matrix hidden) {
  auto* slice = const_cast<std::byte*>(input.data());
  if (received_.bytes() > 0) {
    slice = received_.data();
    model_->backend().copy_in(input, slice);
  }
  slices_.gather(*collective_, slice_of(slice, hidden), hidden);
  return {};
}

void ModelRunner::copy_pooled_rows(tensor::Matrix hidden, SamplingResults& drawn) {
  size_t copied = 0;
  model_->normed_rows(hidden, drawn.wanted.pooled, [&](size_t, tensor::Matrix rows) {
    model_->backend().copy_out(rows.data, drawn.pooled.subspan(copied, rows.bytes()));
    copied += rows.bytes();
  });
}

// Memory of the kind that the device copies to without holding up this thread.
std::span<std::byte> ModelRunner::memory_for_pooled_rows(const StageBatch& batch) {
  size_t bytes = 0;
  for (const PlanSlice& slice : batch.slices) bytes += Pooler::row_count(slice);
  bytes *= static_cast<size_t>(model_->config().hidden_size) * tensor::size_of(model_->backend().compute_dtype());
  if (pooled_rows_.bytes() < bytes) pooled_rows_ = model_->backend().allocate_host(bytes);
  return {pooled_rows_.data(), bytes};
}

/// Projects the wanted rows to logits, which all ranks compute and the leader gathers and draws from.
void ModelRunner::project(const StageBatch& batch, tensor::Matrix hidden, SamplingResults& drawn) {
  drawn.samples.resize(drawn.wanted.sample_count);
  drawn.scores.resize(drawn.wanted.targets.size());
  model_->logits(hidden, drawn.wanted.rows, [&](size_t first, tensor::Matrix logits) {
    if (makes_outputs()) draw(batch, first, logits, drawn);
  });
}

/// Samples and scores a block of logits, which begins with the wanted row `first`.
void ModelRunner::draw(const StageBatch& batch, size_t first, tensor::Matrix logits, SamplingResults& drawn) {
  const LogitRows& wanted = drawn.wanted;
  const auto vocab = static_cast<int32_t>(vocab_size_);
  const size_t end = first + static_cast<size_t>(logits.rows);
  const size_t split = std::clamp(wanted.sample_count, first, end);
  if (split > first) {
    model_->backend().sample(row_range(logits, 0, split - first), vocab,
                             std::span(batch.sample_specs).subspan(first, split - first),
                             std::span(drawn.samples).subspan(first, split - first));
  }
  if (end > split) {
    const size_t from = split - wanted.sample_count;
    const size_t count = end - split;
    model_->backend().score(
        row_range(logits, split - first, end - first), vocab, std::span(wanted.targets).subspan(from, count),
        std::span(wanted.top_counts).subspan(from, count), std::span(drawn.scores).subspan(from, count));
  }
}

std::vector<SliceOutput> ModelRunner::outputs(const StageBatch& batch, SamplingResults drawn) {
  std::vector<SliceOutput> outputs(batch.slices.size());
  for (size_t row = 0; row < drawn.samples.size(); ++row) {
    SliceOutput& output = outputs[drawn.wanted.slice_of[row]];
    if (output.fault != tensor::LogitFault::kNone) continue;
    output.fault = drawn.samples[row].fault;
    if (output.fault == tensor::LogitFault::kNone) output.samples.push_back(std::move(drawn.samples[row]));
  }
  for (size_t i = 0; i < drawn.scores.size(); ++i) {
    SliceOutput& output = outputs[drawn.wanted.slice_of[drawn.samples.size() + i]];
    if (output.fault == tensor::LogitFault::kNone) output.fault = drawn.scores[i].fault;
    output.scores.push_back(std::move(drawn.scores[i].logprobs));
  }
  if (!drawn.pooled.empty()) pool(batch, drawn.pooled, outputs);
  return outputs;
}

void ModelRunner::pool(const StageBatch& batch, std::span<std::byte> rows, std::vector<SliceOutput>& outputs) {
  tensor::Matrix left{
      .data = rows.data(), .dtype = model_->backend().compute_dtype(), .rows = 0, .cols = model_->config().hidden_size};
  for (size_t s = 0; s < batch.slices.size(); ++s) {
    left.rows = Pooler::row_count(batch.slices[s]);
    if (left.rows == 0) continue;
    pooler_.pool(batch.slices[s], left, outputs[s]);
    left.data += left.bytes();
  }
}

}  // namespace millrace::sched
