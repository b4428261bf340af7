#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "async/event.h"
#include "async/runtime.h"
#include "cache/page_copy.h"
#include "cache/store/page_store.h"
#include "sched/plan/plan_output.h"
#include "sched/stage/sequence_table.h"
#include "tensor/backend.h"
#include "tensor/collective.h"
#include "tensor/expert_exchange.h"

namespace millrace::sched {

/// Runs plans on one rank's part of a stage's layers, and owns its pages on the device and in the host tier. Owned by
/// LocalStages over all epochs of the ring. The stage loop calls it on the rank's thread, one plan at a time.
class StageRunner {
 public:
  virtual ~StageRunner() = default;

  /// Return the bytes of activations per row that leave this stage (0 on the last) and that come in (0 on the first).
  [[nodiscard]] virtual size_t output_row_bytes() const = 0;
  [[nodiscard]] virtual size_t input_row_bytes() const = 0;

  /// Runs a non-empty batch. `input` is [rows, hidden] from the stage before, empty on the first. Each layer waits for
  /// its part of the loads that begin_load() has begun. The result's activations stay valid for output_buffers() - 1
  /// further runs. Throws when the device fails.
  struct Result {
    /// [rows, hidden], on the device where a stage of this process reads it; empty on the last stage.
    std::span<const std::byte> activations;
    std::vector<SliceOutput> outputs;  ///< one per slice; only on the last stage, and there only on the leader
  };
  [[nodiscard]] virtual asio::awaitable<Result> run(const StageBatch& batch, std::span<const std::byte> input) = 0;

  /// Sets the rank's end of the exchanges within its stage, for the runs of one epoch. Called before its first run, in
  /// a stage of several ranks.
  virtual void set_collective(std::unique_ptr<tensor::Collective> /*collective*/) {}
  /// Sets the rank's end of the exchange of experts with other rings, for the runs of one epoch. Called before its
  /// first run, where rings share experts.
  virtual void set_expert_exchange(std::unique_ptr<tensor::ExpertExchange> /*exchange*/) {}
  /// Takes part in a step of all rings for which this one has no rows. Called where rings share experts. Throws as
  /// run().
  [[nodiscard]] virtual asio::awaitable<void> step_without_rows(uint64_t step);
  /// Ends the exchanges of the epoch: a run that waits in one throws CollectiveAborted on every rank of the stage.
  virtual void abort_exchanges(const std::string& /*reason*/) {}

  /// Returns the number of activation buffers, at least 2, which runs use in turn. A next stage of the same process
  /// reads them in place, so this stage can be at most this many runs ahead.
  [[nodiscard]] virtual size_t output_buffers() const { return 2; }
  /// Returns memory, on the host or on the device, into which a link receives activations (LinkReceiver::fills_posted).
  /// run() gets parts of it as `input`. The memory is the same in every epoch.
  enum class Memory : uint8_t { kHost, kDevice };
  [[nodiscard]] virtual std::span<std::byte> input_memory(size_t bytes, Memory where);
  /// Sets where the downstream link reads activations from the next run on. With kHost a link to another process reads
  /// them in host memory.
  virtual void set_output_memory(Memory /*where*/) {}
  /// Returns the device as an end of channels to other devices; null when it has none.
  [[nodiscard]] virtual tensor::Backend* channel_backend() { return nullptr; }

  /// Begins to copy the host pages of `loads` to their device pages, layer by layer, concurrently with runs. The event
  /// is set at the end; nothing else touches the written pages meanwhile. Called only if StageBounds::host_page_count >
  /// 0.
  [[nodiscard]] virtual async::Event begin_load(std::vector<cache::PageCopy> loads);
  /// Forgets the loads of an epoch that has ended, whether they succeeded or not: later runs do not wait for them.
  virtual void drop_loads() {}
  /// Copies device pages to the host tier, concurrently with runs, which do not write to them meanwhile. Called only if
  /// StageBounds::host_page_count > 0.
  [[nodiscard]] virtual asio::awaitable<void> store_pages(const cache::PageCopy& copy);
  /// Returns the bytes of one page of a cache group in the host tier.
  [[nodiscard]] virtual std::span<std::byte> host_page(uint32_t group, HostPageId page);
  /// The state of the host tier's pages. The stage loops of successive epochs maintain it; it lives as long as the
  /// pages.
  struct HostTier {
    std::vector<std::vector<bool>> valid;  // by cache group and page: a store or a fetch has filled the page
    cache::CopyId last_verify{0};          // the last verify of the head that was answered
  };
  [[nodiscard]] HostTier& host_tier() { return host_tier_; }
  /// Returns the counts of graph replays; null for a device that captures no graphs.
  [[nodiscard]] virtual const tensor::GraphStats* graph_stats() const { return nullptr; }
  /// Returns the page store of a cache group after the host tier; null when there is none, or when no layer of the
  /// stage is in the group.
  [[nodiscard]] virtual cache::PageStore* store(uint32_t /*group*/) { return nullptr; }

 private:
  HostTier host_tier_;
};

}  // namespace millrace::sched
