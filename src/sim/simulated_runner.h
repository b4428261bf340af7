#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "async/runtime.h"
#include "sched/stage/stage_runner.h"
#include "sim/simulated_collective.h"
#include "sim/simulated_experts.h"
#include "sim/simulated_model.h"

namespace millrace::sim {

/// The virtual time that a stage takes for a batch: t = fixed + per_row·Σx + per_pair·Σ(2·L·x + x²), times a factor
/// between 1 and 1 + jitter. L is the prefix of a slice and x its rows.
struct SimulatedCost {
  double fixed_us = 0;
  double per_row_us = 0;
  double per_pair_us = 0;
  double jitter = 0;
  double per_copied_page_us = 0;
};

struct SimulatedStage {
  int32_t layer_begin = 0;
  int32_t layer_end = 0;
  bool first = false;
  bool last = false;
  SimulatedCost cost;
  tensor::RankPosition position = {};

  [[nodiscard]] bool samples() const { return last && position.rank == 0; }
};

/// An exception that a runner's `fault` throws. After the epoch another process with other memory replaces the stage's;
/// the next throw brings the former one back unchanged.
struct StageDeath : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A StageRunner that runs a SimulatedModel's layers over pages of its own and takes virtual time. A rank of several
/// contributes some bytes of each context, so that a wrong page of any rank changes every later token. `random` gives
/// the jitter. `fault`, if set, is called before each run and may throw. `stall`, if set, returns how long the run
/// hangs first.
class SimulatedRunner final : public sched::StageRunner {
 public:
  SimulatedRunner(async::Runtime& runtime, SimulatedModel model, SimulatedStage stage, const sched::StageBounds& bounds,
                  std::function<uint64_t()> random, std::function<void()> fault = {},
                  std::vector<std::unique_ptr<cache::PageStore>> stores = {},
                  std::function<async::Duration()> stall = {});

  [[nodiscard]] size_t output_row_bytes() const override { return stage_.last ? 0 : sizeof(uint64_t); }
  [[nodiscard]] size_t input_row_bytes() const override { return stage_.first ? 0 : sizeof(uint64_t); }
  [[nodiscard]] asio::awaitable<Result> run(const sched::StageBatch& batch, std::span<const std::byte> input) override;
  void set_collective(std::unique_ptr<tensor::Collective> collective) override;
  void set_expert_exchange(std::unique_ptr<tensor::ExpertExchange> exchange) override;
  [[nodiscard]] asio::awaitable<void> step_without_rows(uint64_t step) override;
  void abort_exchanges(const std::string& reason) override;
  [[nodiscard]] std::span<std::byte> input_memory(size_t bytes, Memory where) override;
  /// Copies at the end of the time that the copy takes, separately for each layer of a load. Until then the written
  /// cells contain noise.
  [[nodiscard]] async::Event begin_load(std::vector<cache::PageCopy> loads) override;
  void drop_loads() override;
  [[nodiscard]] asio::awaitable<void> store_pages(const cache::PageCopy& copy) override;
  [[nodiscard]] std::span<std::byte> host_page(uint32_t group, HostPageId page) override;
  [[nodiscard]] cache::PageStore* store(uint32_t group) override {
    return group < stores_.size() ? stores_[group].get() : nullptr;
  }

 private:
  [[nodiscard]] asio::awaitable<void> inject_faults();
  [[nodiscard]] std::span<uint64_t> host_cells(uint32_t group, HostPageId page);
  [[nodiscard]] size_t layers_in(uint32_t group) const;
  [[nodiscard]] uint32_t page_values(uint32_t group) const { return page_values_[group]; }
  [[nodiscard]] double chance();
  void load_layer(int32_t layer, const std::vector<cache::PageCopy>& loads, bool for_real);
  [[nodiscard]] std::vector<uint64_t> contexts(int32_t layer, const sched::StageBatch& batch,
                                               std::span<const uint64_t> hidden);
  [[nodiscard]] std::vector<uint64_t> states(int32_t layer, const sched::PlanSlice& slice,
                                             std::span<const PageId> pages, std::span<const uint64_t> hidden);
  [[nodiscard]] std::vector<uint64_t> all_states(int32_t layer, const sched::StageBatch& batch,
                                                 std::span<const uint64_t> hidden);
  [[nodiscard]] asio::awaitable<void> run_layer(int32_t layer, const sched::StageBatch& batch,
                                                std::vector<uint64_t>& hidden);
  [[nodiscard]] asio::awaitable<void> run_layers(const sched::StageBatch& batch, std::span<const std::byte> input,
                                                 std::vector<uint64_t>& hidden);
  [[nodiscard]] std::vector<sched::SliceOutput> outputs(const sched::StageBatch& batch,
                                                        std::span<const uint64_t> hidden);
  void pool(const sched::PlanSlice& slice, std::span<const uint64_t> rows, sched::SliceOutput& output);
  [[nodiscard]] uint64_t& cell(int32_t layer, PageId page, uint32_t offset);
  [[nodiscard]] async::Duration cost(const sched::StageBatch& batch);
  [[nodiscard]] async::Duration copy_time(size_t page_count);

  async::Runtime& runtime_;
  const SimulatedModel model_;
  const SimulatedStage stage_;
  const sched::StageBounds bounds_;
  std::function<uint64_t()> random_;
  std::function<void()> fault_;
  std::function<async::Duration()> stall_;
  struct Cells {
    std::vector<std::vector<uint64_t>> pages;       // [layers of the stage][page_count, page_size]
    std::vector<std::vector<uint64_t>> host_pages;  // [cache groups][host pages, layers of the group, page_size]
  };
  struct OtherProcess {
    Cells cells;
    HostTier host_tier;
  };
  std::optional<OtherProcess> other_process_;
  bool has_died_ = false;              // another process replaces it when the epoch is over
  std::vector<uint32_t> page_values_;  // [cache groups]: of a layer
  Cells cells_;
  std::vector<std::unique_ptr<cache::PageStore>> stores_;  // [cache groups]
  std::unique_ptr<SimulatedCollective> collective_;        // of the epoch; null with one rank
  std::unique_ptr<SimulatedExpertExchange> experts_;       // of the epoch; null where the ring has all experts
  std::unordered_map<SlotId, uint64_t> pooled_;            // running value of each sequence that is pooled by mean
  std::vector<uint64_t> inputs_;                           // memory for a link that fills posted memory
  std::vector<std::vector<async::Event>> loads_;           // begun since the last run; one event per layer
  std::array<std::vector<uint64_t>, 2> activations_;       // [rows] each; they take turns
  size_t turn_ = 0;
};

}  // namespace millrace::sim
