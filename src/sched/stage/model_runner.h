#pragma once

#include <array>
#include <memory>

#include "model/stage_model.h"
#include "sched/stage/activation_slices.h"
#include "sched/stage/pooler.h"
#include "sched/stage/stage_runner.h"

namespace millrace::sched {

/// The StageRunner of production: a StageModel on its Backend. The device works on its own threads; the coroutine only
/// waits. A run under way must be awaited to its end: a stage ends by closing its link, not by cancellation.
class ModelRunner final : public StageRunner {
 public:
  struct Options {
    uint32_t vocab_size = 0;                   ///< ids that may be sampled
    std::vector<uint32_t> host_page_counts{};  ///< [cache groups], of the host tier; none: there is no host tier
    /// Says whether a link may read the activations on the host; otherwise a stage of this process reads them on the
    /// device.
    bool activations_to_host = true;
    size_t output_buffers = 2;
    /// Says, with several ranks, that the stage before or the next one is on another node. Each rank then receives or
    /// sends its columns of the activations only.
    bool slices_input = false;
    bool slices_output = false;
  };
  /// Returns the device memory that the constructor, input_memory() and the collective will allocate in addition to the
  /// model, with two output buffers.
  [[nodiscard]] static uint64_t device_bytes(const model::StageModel& model, bool receives_on_device);
  /// Returns the bytes of the largest matrix that an exchange between the ranks of a model's stage gives.
  [[nodiscard]] static size_t max_exchange_bytes(const model::StageModel& model);
  /// Takes a model with an allocated cache, or leaves it where it is when memory is short and this throws. The model's
  /// backend outlives the runner. `stores` are the page stores after the host tier, by cache group; null, or missing:
  /// none.
  ModelRunner(async::Runtime& runtime, std::unique_ptr<model::StageModel>&& model, const Options& options,
              std::vector<std::unique_ptr<cache::PageStore>> stores);

  /// Returns the model for another runner; this one runs no more.
  [[nodiscard]] std::unique_ptr<model::StageModel> release_model();

  [[nodiscard]] size_t output_row_bytes() const override { return output_row_bytes_; }
  [[nodiscard]] size_t input_row_bytes() const override { return input_row_bytes_; }
  [[nodiscard]] size_t output_buffers() const override { return hidden_.size(); }
  [[nodiscard]] asio::awaitable<Result> run(const StageBatch& batch, std::span<const std::byte> input) override;
  [[nodiscard]] std::span<std::byte> input_memory(size_t bytes, Memory where) override;
  void set_output_memory(Memory where) override { output_memory_ = where; }
  void set_collective(std::unique_ptr<tensor::Collective> collective) override;
  void set_expert_exchange(std::unique_ptr<tensor::ExpertExchange> exchange) override;
  [[nodiscard]] asio::awaitable<void> step_without_rows(uint64_t step) override;
  void abort_exchanges(const std::string& reason) override {
    if (collective_) collective_->abort(reason);
    if (expert_exchange_) expert_exchange_->abort(reason);
  }
  [[nodiscard]] tensor::Backend* channel_backend() override { return &model_->backend(); }
  [[nodiscard]] async::Event begin_load(std::vector<cache::PageCopy> loads) override;
  void drop_loads() override { loads_.clear(); }
  [[nodiscard]] asio::awaitable<void> store_pages(const cache::PageCopy& copy) override;
  [[nodiscard]] std::span<std::byte> host_page(uint32_t group, HostPageId page) override;
  [[nodiscard]] const tensor::GraphStats* graph_stats() const override { return graph_stats_.get(); }
  [[nodiscard]] cache::PageStore* store(uint32_t group) override {
    return group < stores_.size() ? stores_[group].get() : nullptr;
  }

 private:
  using LayerGates = std::vector<std::shared_ptr<tensor::LayerGate>>;
  /// Addresses of pages to copy, by cache group.
  using GroupTransfers = std::vector<std::vector<tensor::PageTransfer>>;
  void load_layers(const GroupTransfers& pages, tensor::LayerGate& gate);
  void add_transfers(const cache::PageCopy& copy, std::vector<tensor::PageTransfer>& transfers);
  struct LogitRows;
  struct SamplingResults;
  void compute(const StageBatch& batch, std::span<const std::byte> input, tensor::Matrix hidden,
               const LayerGates& loads, SamplingResults& drawn);
  /// Returns whether this rank makes the outputs: the leader of the last stage.
  [[nodiscard]] bool makes_outputs() const { return model_->span().last && model_->rank().position.rank == 0; }
  [[nodiscard]] static LogitRows logit_rows(const StageBatch& batch);
  static void trim_to_tail_rows(const StageBatch& batch, size_t most, LogitRows& wanted);
  void project(const StageBatch& batch, tensor::Matrix hidden, SamplingResults& drawn);
  void draw(const StageBatch& batch, size_t first, tensor::Matrix logits, SamplingResults& drawn);
  [[nodiscard]] std::span<std::byte> memory_for_pooled_rows(const StageBatch& batch);
  void copy_pooled_rows(tensor::Matrix hidden, SamplingResults& drawn);
  [[nodiscard]] std::vector<SliceOutput> outputs(const StageBatch& batch, SamplingResults drawn);
  void pool(const StageBatch& batch, std::span<std::byte> rows, std::vector<SliceOutput>& outputs);
  [[nodiscard]] tensor::Matrix sent_of(tensor::Matrix hidden) const;
  [[nodiscard]] std::span<std::byte> host_copy_of(tensor::Matrix sent) const;
  [[nodiscard]] tensor::Matrix slice_of(std::byte* data, tensor::Matrix hidden) const;
  [[nodiscard]] std::span<const std::byte> gathered(std::span<const std::byte> input, tensor::Matrix hidden);

  async::Runtime& runtime_;
  std::unique_ptr<model::StageModel> model_;
  const uint32_t vocab_size_;
  std::unique_ptr<tensor::Collective> collective_;           // of the epoch; null in a stage of one rank
  std::unique_ptr<tensor::ExpertExchange> expert_exchange_;  // of the epoch, where rings share experts
  std::vector<tensor::Buffer> hidden_;                       // [max_batch_tokens, hidden] each; they take turns
  std::vector<tensor::Buffer> host_copies_;                  // copies for links that need them
  ActivationSlices slices_;
  std::vector<tensor::Buffer>
      packed_;               // [max_batch_tokens, hidden / ranks] each, where slices are sent; they take turns
  tensor::Buffer received_;  // [max_batch_tokens, hidden / ranks] a slice from a link, on a device
  std::array<tensor::Buffer, 2> inputs_;  // by Memory; allocated when first asked for
  Memory output_memory_ = Memory::kHost;
  size_t row_bytes_ = 0;
  size_t input_row_bytes_ = 0;
  size_t output_row_bytes_ = 0;
  bool gathers_input_ = false;
  size_t next_buffer_ = 0;
  struct HostPages {
    size_t page_bytes = 0;  // 0: no layer of the stage is in the group
    tensor::Buffer pages;   // [host pages, page_bytes]
  };
  std::vector<HostPages> host_pages_;                      // [cache groups]
  LayerGates loads_;                                       // begun since the last run
  std::shared_ptr<const tensor::GraphStats> graph_stats_;  // kept after the model's release
  Pooler pooler_;
  tensor::Buffer pooled_rows_;  // of one run, on the host; grows to the most rows that a batch has pooled
  std::vector<std::unique_ptr<cache::PageStore>> stores_;  // [cache groups]
};

}  // namespace millrace::sched
