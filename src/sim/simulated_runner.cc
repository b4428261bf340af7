#include "sim/simulated_runner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "async/wait_list.h"
#include "base/check.h"

namespace millrace::sim {

SimulatedRunner::SimulatedRunner(async::Runtime& runtime, SimulatedModel model, SimulatedStage stage,
                                 const sched::StageBounds& bounds, std::function<uint64_t()> random,
                                 std::function<void()> fault, std::vector<std::unique_ptr<cache::PageStore>> stores,
                                 std::function<async::Duration()> stall)
    : runtime_(runtime),
      model_(model),
      stage_(stage),
      bounds_(bounds),
      random_(std::move(random)),
      fault_(std::move(fault)),
      stall_(std::move(stall)),
      stores_(std::move(stores)) {
  CHECK(bounds.group_count() == 1 + model.windows().size(), "{} cache groups for a model with {} windows",
        bounds.group_count(), model.windows().size());
  for (uint32_t group = 0; group < bounds.group_count(); ++group) {
    page_values_.push_back(model.page_values(group, bounds.page_size));
  }
  for (int32_t layer = stage.layer_begin; layer < stage.layer_end; ++layer) {
    const uint32_t group = model.group_of(layer);
    cells_.pages.emplace_back(size_t{bounds.pools(group).device} * page_values(group));
  }
  for (uint32_t group = 0; group < bounds.group_count(); ++group) {
    cells_.host_pages.emplace_back(bounds.pools(group).host * layers_in(group) * page_values(group));
  }
}

size_t SimulatedRunner::layers_in(uint32_t group) const {
  return model_.layers_in(group, stage_.layer_begin, stage_.layer_end);
}

std::span<uint64_t> SimulatedRunner::host_cells(uint32_t group, HostPageId page) {
  const size_t count = layers_in(group) * page_values(group);
  return std::span(cells_.host_pages[group]).subspan(page.value() * count, count);
}

std::span<std::byte> SimulatedRunner::input_memory(size_t bytes, Memory) {
  inputs_.resize((bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t));
  return std::as_writable_bytes(std::span(inputs_)).first(bytes);
}

std::span<std::byte> SimulatedRunner::host_page(uint32_t group, HostPageId page) {
  return std::as_writable_bytes(host_cells(group, page));
}

void SimulatedRunner::load_layer(int32_t layer, const std::vector<cache::PageCopy>& loads, bool for_real) {
  const uint32_t group = model_.group_of(layer);
  const uint32_t count = page_values(group);
  const size_t begin = model_.layers_in(group, stage_.layer_begin, layer) * count;
  for (const cache::PageCopy& copy : loads) {
    if (copy.group != group) continue;
    for (size_t i = 0; i < copy.device.size(); ++i) {
      const std::span<uint64_t> cells = host_cells(group, copy.host[i]).subspan(begin, count);
      for (uint32_t offset = 0; offset < count; ++offset) {
        cell(layer, copy.device[i], offset) = for_real ? cells[offset] : random_();
      }
    }
  }
}

async::Event SimulatedRunner::begin_load(std::vector<cache::PageCopy> loads) {
  std::vector<async::Event>& layers = loads_.emplace_back();
  const auto layer_count = static_cast<size_t>(stage_.layer_end - stage_.layer_begin);
  size_t page_count = 0;
  for (const cache::PageCopy& copy : loads) page_count += copy.page_count();
  async::TimePoint at = runtime_.now();
  for (int32_t layer = stage_.layer_begin; layer < stage_.layer_end; ++layer) {
    load_layer(layer, loads, false);
    at += copy_time(page_count) / layer_count;
    const async::Event loaded = layers.emplace_back(runtime_);
    runtime_.arm(at, [this, layer, loads, loaded] {
      load_layer(layer, loads, true);
      loaded.set();
    });
  }
  return layers.back();
}

asio::awaitable<void> SimulatedRunner::store_pages(const cache::PageCopy& stored) {
  const auto copy = [&](bool for_real) {
    for (size_t i = 0; i < stored.device.size(); ++i) {
      size_t at = 0;
      for (int32_t layer = stage_.layer_begin; layer < stage_.layer_end; ++layer) {
        if (model_.group_of(layer) != stored.group) continue;
        for (uint32_t offset = 0; offset < page_values(stored.group); ++offset, ++at) {
          host_cells(stored.group, stored.host[i])[at] = for_real ? cell(layer, stored.device[i], offset) : random_();
        }
      }
    }
  };
  copy(false);
  co_await async::sleep_for(runtime_, copy_time(stored.device.size()));
  copy(true);
}

async::Duration SimulatedRunner::copy_time(size_t page_count) {
  const double us = stage_.cost.per_copied_page_us * static_cast<double>(page_count) * (0.5 + chance());
  return async::Duration(static_cast<int64_t>(us * 1000.0));
}

double SimulatedRunner::chance() {
  return static_cast<double>(random_() >> 11) * 0x1.0p-53;
}

uint64_t& SimulatedRunner::cell(int32_t layer, PageId page, uint32_t offset) {
  return cells_.pages[static_cast<size_t>(layer - stage_.layer_begin)]
                     [page.value() * page_values(model_.group_of(layer)) + offset];
}

void SimulatedRunner::set_collective(std::unique_ptr<tensor::Collective> collective) {
  auto* const simulated = dynamic_cast<SimulatedCollective*>(collective.get());
  CHECK(simulated != nullptr, "a simulated rank needs a simulated collective");
  (void)collective.release();
  collective_.reset(simulated);
}

void SimulatedRunner::set_expert_exchange(std::unique_ptr<tensor::ExpertExchange> exchange) {
  auto* const simulated = dynamic_cast<SimulatedExpertExchange*>(exchange.get());
  CHECK(simulated != nullptr, "a simulated rank needs a simulated exchange of experts");
  (void)exchange.release();
  experts_.reset(simulated);
}

asio::awaitable<void> SimulatedRunner::step_without_rows(uint64_t step) {
  CHECK(experts_ != nullptr, "step {} of a stage that shares no experts", step);
  co_await inject_faults();
  const bool has_rows = co_await experts_->begin(step, 0);
  if (!has_rows) co_return;
  for (int32_t layer = stage_.layer_begin; layer < stage_.layer_end; ++layer) {
    (void)co_await experts_->differences(layer, {});
  }
}

void SimulatedRunner::abort_exchanges(const std::string& reason) {
  if (collective_) collective_->abort(reason);
  if (experts_) experts_->abort(reason);
}

/// Runs the states of one sequence over its rows, and stores those before drafts as its pages say. Returns the state
/// after each row.
std::vector<uint64_t> SimulatedRunner::states(int32_t layer, const sched::PlanSlice& slice,
                                              std::span<const PageId> pages, std::span<const uint64_t> hidden) {
  const size_t kept = hidden.size() - slice.draft_count;
  std::vector<uint64_t> found;
  uint64_t state = slice.prefix == 0 ? 0 : cell(layer, pages[(slice.prefix - 1) / bounds_.page_size], 0);
  for (const uint64_t row : hidden) {
    state = SimulatedModel::attend(state, SimulatedModel::key_value(layer, row));
    found.push_back(state);
    const size_t tokens = slice.prefix + found.size();
    if (found.size() > kept) continue;
    const PageId page = pages[(tokens - 1) / bounds_.page_size];
    const bool is_stored = tokens % bounds_.page_size == 0 || found.size() == kept;
    if (is_stored && page != cache::kNoPage) cell(layer, page, 0) = state;
  }
  return found;
}

/// Runs the states of all sequences, in an order that no plan may rely on.
std::vector<uint64_t> SimulatedRunner::all_states(int32_t layer, const sched::StageBatch& batch,
                                                  std::span<const uint64_t> hidden) {
  const tensor::BatchLayout& layout = batch.windows[model_.group_of(layer) - 1];
  std::vector<uint64_t> found(hidden.size());
  const bool is_reversed = random_() % 2 == 0;
  for (size_t i = 0; i < batch.slices.size(); ++i) {
    const size_t sequence = is_reversed ? batch.slices.size() - 1 - i : i;
    const sched::PlanSlice& slice = batch.slices[sequence];
    const auto begin = static_cast<size_t>(layout.row_begin[sequence]);
    const auto pages = layout.pages.subspan(static_cast<size_t>(layout.page_begin[sequence]));
    const auto own = states(layer, slice, pages, hidden.subspan(begin, slice.token_count));
    std::ranges::copy(own, found.begin() + static_cast<ptrdiff_t>(begin));
  }
  return found;
}

/// Stores the rows of a layer in their pages, and returns what each attends to.
std::vector<uint64_t> SimulatedRunner::contexts(int32_t layer, const sched::StageBatch& batch,
                                                std::span<const uint64_t> hidden) {
  std::vector<uint64_t> found(hidden.size());
  const uint32_t group = model_.group_of(layer);
  const tensor::BatchLayout& layout = group == 0 ? batch.layout : batch.windows[group - 1];
  for (size_t sequence = 0; sequence < batch.slices.size(); ++sequence) {
    const sched::PlanSlice& slice = batch.slices[sequence];
    const auto pages = layout.pages.subspan(static_cast<size_t>(layout.page_begin[sequence]));
    const auto row_begin = static_cast<size_t>(layout.row_begin[sequence]);
    for (uint32_t i = 0; i < slice.token_count; ++i) {
      const uint32_t position = slice.prefix + i;
      cell(layer, pages[position / bounds_.page_size], position % bounds_.page_size) =
          SimulatedModel::key_value(layer, hidden[row_begin + i]);
      uint64_t context = 0;
      for (size_t at = model_.first_visible(position, layer); at <= position; ++at) {
        context = SimulatedModel::attend(
            context, cell(layer, pages[at / bounds_.page_size], static_cast<uint32_t>(at % bounds_.page_size)));
      }
      found[row_begin + i] = context;
    }
  }
  return found;
}

asio::awaitable<void> SimulatedRunner::run_layer(int32_t layer, const sched::StageBatch& batch,
                                                 std::vector<uint64_t>& hidden) {
  const auto shift = 8 * stage_.position.first_shard();
  const uint64_t own_bytes = (~uint64_t{0} >> (64 - 8 * stage_.position.shard_count())) << shift;
  std::vector<uint64_t> found =
      model_.keeps_state(layer) ? all_states(layer, batch, hidden) : contexts(layer, batch, hidden);
  for (uint64_t& context : found) context &= own_bytes;  // those of the other ranks come from them
  if (collective_) {
    const uint64_t exchange =
        batch.plan.value() * static_cast<uint64_t>(model_.layer_count) + static_cast<uint64_t>(layer);
    found = co_await collective_->sum(exchange, std::move(found));
  }
  for (size_t row = 0; row < hidden.size(); ++row) hidden[row] = SimulatedModel::mix(hidden[row], found[row]);
  if (!experts_) co_return;
  const std::vector<uint64_t> differences = co_await experts_->differences(layer, hidden);
  for (size_t row = 0; row < hidden.size(); ++row) hidden[row] ^= differences[row];
}

// Without loads the layers need no times of their own, and fewer events make the simulation faster.
asio::awaitable<void> SimulatedRunner::run_layers(const sched::StageBatch& batch, std::span<const std::byte> input,
                                                  std::vector<uint64_t>& hidden) {
  const auto loads = std::exchange(loads_, {});
  const async::Duration time = cost(batch);
  const auto layer_count = stage_.layer_end - stage_.layer_begin;
  if (loads.empty()) co_await async::sleep_for(runtime_, time);
  for (int32_t layer = 0; layer < layer_count; ++layer) {
    for (const auto& layers : loads) co_await layers[static_cast<size_t>(layer)].wait();
    if (!loads.empty()) co_await async::sleep_for(runtime_, time / layer_count);
    if (layer == 0 && !stage_.first) std::memcpy(hidden.data(), input.data(), input.size());
    co_await run_layer(stage_.layer_begin + layer, batch, hidden);
  }
}

async::Duration SimulatedRunner::cost(const sched::StageBatch& batch) {
  const SimulatedCost& cost = stage_.cost;
  double us = cost.fixed_us;
  for (const sched::PlanSlice& slice : batch.slices) {
    const double rows = slice.token_count;
    us += cost.per_row_us * rows + cost.per_pair_us * (2.0 * slice.prefix * rows + rows * rows);
  }
  return async::Duration(static_cast<int64_t>(us * 1000.0 * (1.0 + cost.jitter * chance())));
}

asio::awaitable<void> SimulatedRunner::inject_faults() {
  try {
    if (fault_) fault_();
  } catch (const StageDeath&) {
    has_died_ = true;
    throw;
  }
  const async::Duration time = stall_ ? stall_() : async::Duration{};
  if (time.count() > 0) co_await async::sleep_for(runtime_, time);
}

// The loads of the old process may not reach the memory of the next.
void SimulatedRunner::drop_loads() {
  loads_.clear();
  if (!std::exchange(has_died_, false)) return;
  if (!other_process_) {
    other_process_.emplace(OtherProcess{cells_, {}});
    for (auto* const tier : {&other_process_->cells.pages, &other_process_->cells.host_pages}) {
      for (std::vector<uint64_t>& cells : *tier) std::ranges::generate(cells, random_);
    }
    for (const std::vector<bool>& pages : host_tier().valid) {
      other_process_->host_tier.valid.emplace_back(pages.size());
    }
  }
  std::swap(cells_, other_process_->cells);
  std::swap(host_tier(), other_process_->host_tier);
}

asio::awaitable<sched::StageRunner::Result> SimulatedRunner::run(const sched::StageBatch& batch,
                                                                 std::span<const std::byte> input) {
  if (fault_ || stall_) co_await inject_faults();
  // The input is read before and the output written after the run's time, since a device may overlap both.
  std::vector<uint64_t> hidden(batch.tokens.size());
  if (stage_.first) {
    for (size_t row = 0; row < hidden.size(); ++row) hidden[row] = SimulatedModel::embed(batch.tokens[row]);
  }
  if (experts_) (void)co_await experts_->begin(batch.step, hidden.size());
  co_await run_layers(batch, input, hidden);

  Result result;
  if (!stage_.last) {
    std::vector<uint64_t>& buffer = activations_[turn_++ % 2];
    buffer = std::move(hidden);
    result.activations = std::as_bytes(std::span(buffer));
    co_return result;
  }
  if (stage_.samples()) result.outputs = outputs(batch, hidden);
  co_return result;
}

namespace {

tensor::SampleResult sample(const SimulatedModel& model, uint64_t hidden, const tensor::SampleSpec& spec) {
  tensor::SampleResult drawn{.token = model.draw(hidden, spec)};
  const int32_t top = spec.params->top_logprobs;
  if (top >= 0) drawn.logprobs = model.score(hidden, drawn.token, top);
  return drawn;
}

}  // namespace

void SimulatedRunner::pool(const sched::PlanSlice& slice, std::span<const uint64_t> rows, sched::SliceOutput& output) {
  using sched::SlicePooling;
  if (slice.pooling == SlicePooling::kNone) return;
  uint64_t& sum = pooled_[slice.slot];
  const bool is_mean = slice.pooling == SlicePooling::kSum || slice.pooling == SlicePooling::kMean;
  if (!is_mean || slice.prefix == 0) sum = 0;
  if (slice.pooling == SlicePooling::kFirstRow) rows = rows.first(1);
  if (slice.pooling == SlicePooling::kLastRow) rows = rows.last(1);
  for (const uint64_t row : rows) sum = SimulatedModel::pool(sum, row);
  if (!slice.returns_vector()) return;
  if (model_.faulty(sum)) {
    output.fault = tensor::LogitFault::kNan;
  } else {
    output.pooled = SimulatedModel::pooled_vector(sum, is_mean ? slice.prefix + rows.size() : 1);
  }
}

std::vector<sched::SliceOutput> SimulatedRunner::outputs(const sched::StageBatch& batch,
                                                         std::span<const uint64_t> hidden) {
  std::vector<sched::SliceOutput> outputs;
  size_t samples = 0;
  size_t row = 0;
  for (const sched::PlanSlice& slice : batch.slices) {
    sched::SliceOutput& output = outputs.emplace_back();
    const size_t end = row + slice.token_count;
    pool(slice, hidden.subspan(row, slice.token_count), output);
    for (size_t at = end - slice.sample_count(); at < end; ++at) {
      const tensor::SampleSpec& spec = batch.sample_specs.at(samples++);
      if (model_.faulty(hidden[at])) output.fault = tensor::LogitFault::kNan;
      if (output.fault == tensor::LogitFault::kNone) output.samples.push_back(sample(model_, hidden[at], spec));
    }
    for (; row < end; ++row) {
      const TokenId next = row + 1 < end ? batch.tokens[row + 1] : slice.next_token;
      if (slice.prompt_top_logprobs >= 0 && next >= 0) {
        output.scores.push_back(model_.score(hidden[row], next, slice.prompt_top_logprobs));
      }
    }
  }
  return outputs;
}

}  // namespace millrace::sim
