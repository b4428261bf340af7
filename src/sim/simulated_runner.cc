#include "sim/simulated_runner.h"

#include <cstring>

#include "async/wait_list.h"

namespace millrace::sim {

SimulatedRunner::SimulatedRunner(async::Runtime& runtime, SimulatedModel model, SimulatedStage stage,
                                 const sched::StageBounds& bounds, std::function<uint64_t()> random,
                                 std::function<void()> fault, std::unique_ptr<cache::PageStore> store)
    : runtime_(runtime),
      model_(model),
      stage_(stage),
      bounds_(bounds),
      random_(std::move(random)),
      fault_(std::move(fault)),
      pages_(static_cast<size_t>(stage.layer_end - stage.layer_begin) * bounds.page_count * bounds.page_size),
      host_pages_(static_cast<size_t>(stage.layer_end - stage.layer_begin) * bounds.host_page_count * bounds.page_size),
      store_(std::move(store)) {}

std::span<uint64_t> SimulatedRunner::host_cells(HostPageId page) {
  const size_t count = static_cast<size_t>(stage_.layer_end - stage_.layer_begin) * bounds_.page_size;
  return std::span(host_pages_).subspan(page.value() * count, count);
}

std::span<std::byte> SimulatedRunner::input_memory(size_t bytes) {
  inputs_.resize((bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t));
  return std::as_writable_bytes(std::span(inputs_)).first(bytes);
}

std::span<std::byte> SimulatedRunner::host_page(HostPageId page) {
  return std::as_writable_bytes(host_cells(page));
}

asio::awaitable<void> SimulatedRunner::copy_pages(CopyDirection direction, std::span<const PageId> device,
                                                  std::span<const HostPageId> host) {
  const auto copy = [&](bool for_real) {
    for (size_t i = 0; i < device.size(); ++i) {
      const std::span<uint64_t> cells = host_cells(host[i]);
      size_t at = 0;
      for (int32_t layer = stage_.layer_begin; layer < stage_.layer_end; ++layer) {
        for (uint32_t offset = 0; offset < bounds_.page_size; ++offset, ++at) {
          uint64_t& on_device = cell(layer, device[i], offset);
          uint64_t& to = direction == CopyDirection::kToDevice ? on_device : cells[at];
          to = !for_real ? random_() : direction == CopyDirection::kToDevice ? cells[at] : on_device;
        }
      }
    }
  };
  copy(false);
  const double us = stage_.cost.per_copied_page_us * static_cast<double>(device.size()) * (0.5 + chance());
  co_await async::sleep_for(runtime_, async::Duration(static_cast<int64_t>(us * 1000.0)));
  copy(true);
}

double SimulatedRunner::chance() { return static_cast<double>(random_() >> 11) * 0x1.0p-53; }

uint64_t& SimulatedRunner::cell(int32_t layer, PageId page, uint32_t offset) {
  const size_t plane = static_cast<size_t>(layer - stage_.layer_begin) * bounds_.page_count + page.value();
  return pages_[plane * bounds_.page_size + offset];
}

uint64_t SimulatedRunner::run_row(const sched::StageBatch& batch, size_t sequence, uint32_t position,
                                  uint64_t hidden) {
  const auto pages = batch.layout.pages.subspan(static_cast<size_t>(batch.layout.page_begin[sequence]));
  for (int32_t layer = stage_.layer_begin; layer < stage_.layer_end; ++layer) {
    cell(layer, pages[position / bounds_.page_size], position % bounds_.page_size) =
        SimulatedModel::key_value(layer, hidden);
    uint64_t context = 0;
    for (uint32_t at = 0; at <= position; ++at) {
      context = SimulatedModel::attend(context, cell(layer, pages[at / bounds_.page_size], at % bounds_.page_size));
    }
    hidden = SimulatedModel::mix(hidden, context);
  }
  return hidden;
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

asio::awaitable<sched::StageRunner::Result> SimulatedRunner::run(const sched::StageBatch& batch,
                                                                 std::span<const std::byte> input) {
  if (fault_) fault_();
  // The input is read before and written after the time that the run takes, as a device would overlap both.
  std::vector<uint64_t> hidden(batch.tokens.size());
  if (stage_.first) {
    for (size_t row = 0; row < hidden.size(); ++row) hidden[row] = SimulatedModel::embed(batch.tokens[row]);
  }
  co_await async::sleep_for(runtime_, cost(batch));
  if (!stage_.first) std::memcpy(hidden.data(), input.data(), input.size());

  Result result;
  for (size_t sequence = 0; sequence < batch.slices.size(); ++sequence) {
    const sched::PlanSlice& slice = batch.slices[sequence];
    const auto row_begin = static_cast<size_t>(batch.layout.row_begin[sequence]);
    for (uint32_t i = 0; i < slice.token_count; ++i) {
      hidden[row_begin + i] = run_row(batch, sequence, slice.prefix + i, hidden[row_begin + i]);
    }
    if (!stage_.last) continue;
    sched::SliceOutput& output = result.outputs.emplace_back();
    if (slice.sample) {
      output.sample.emplace().token = model_.token_of(hidden[row_begin + slice.token_count - 1]);
    }
  }
  if (!stage_.last) {
    std::vector<uint64_t>& buffer = activations_[turn_++ % 2];
    buffer = std::move(hidden);
    result.activations = std::as_bytes(std::span(buffer));
  }
  co_return result;
}

}  // namespace millrace::sim
