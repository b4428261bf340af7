#pragma once

#include <boost/asio/awaitable.hpp>
#include <span>
#include <vector>

#include "async/event.h"
#include "async/runtime.h"
#include "cache/store/page_store.h"
#include "sched/plan/plan.h"
#include "sched/stage/sequence_table.h"
#include "tensor/backend.h"

namespace millrace::sched {

/// Runs plans on a stage's layers, and holds their pages: on the device and on the host. Owned by whoever hosts the
/// stage, over all epochs of the ring; called by the stage loop on the stage's thread, one plan at a time.
class StageRunner {
 public:
  virtual ~StageRunner() = default;

  /// Bytes of activations per row that leave this stage, and that come in; 0 on the last and on the first stage.
  [[nodiscard]] virtual size_t output_row_bytes() const = 0;
  [[nodiscard]] virtual size_t input_row_bytes() const = 0;

  /// Runs a non-empty batch. `input`: [rows, hidden] from the stage before, empty on the first. The result's
  /// activations stay valid for output_buffers() - 1 further runs. Throws when the device fails. What begin_load() has
  /// begun is waited for: each layer until it has come.
  struct Result {
    /// [rows, hidden], on the device where a stage of this process reads it; empty on the last stage.
    std::span<const std::byte> activations;
    std::vector<SliceOutput> outputs;  ///< as the slices; empty but on the last stage
  };
  [[nodiscard]] virtual asio::awaitable<Result> run(const StageBatch& batch, std::span<const std::byte> input) = 0;

  /// Buffers of activations that take turns, at least 2. A next stage of the same process reads them in place, so that
  /// this one can be no more runs ahead of it than it has buffers.
  [[nodiscard]] virtual size_t output_buffers() const { return 2; }
  /// `bytes` of memory in which activations shall arrive over a link that fills memory (LinkReceiver::fills_posted),
  /// of the host or of the device; run() then gets a part of it as `input`. The same memory in every epoch.
  enum class Memory : uint8_t { kHost, kDevice };
  [[nodiscard]] virtual std::span<std::byte> input_memory(size_t bytes, Memory where);
  /// Where the link behind this stage reads its activations, from the next run on; kHost: in memory of the host if it
  /// leads to another process.
  virtual void set_output_memory(Memory /*where*/) {}
  /// The device, as one end of channels to other devices; null: it has none.
  [[nodiscard]] virtual tensor::Backend* channel_backend() { return nullptr; }

  /// Copies between the device and the host tier, device[i] and host[i], beside runs. Nothing else touches the pages
  /// written to meanwhile. Called only where StageBounds::host_page_count says that there is a host tier.
  /// Begins to copy host pages to the device, one layer of all of them after another. The event is set at the end.
  [[nodiscard]] virtual async::Event begin_load(std::vector<PageId> device, std::vector<HostPageId> host);
  /// The epoch that began loads has ended, and they with it, well or ill: no later run is told of them.
  virtual void drop_loads() {}
  /// Copies device pages to the host; no run writes to them meanwhile.
  [[nodiscard]] virtual asio::awaitable<void> store_pages(std::span<const PageId> device,
                                                          std::span<const HostPageId> host);
  /// A page of the host tier.
  [[nodiscard]] virtual std::span<std::byte> host_page(HostPageId page);
  /// What is known of the pages of the host tier. Kept by the stage loops, one after another; it lives as long as the
  /// pages' memory.
  struct HostTier {
    std::vector<bool> valid;       // by page: a store or a fetch has filled it
    cache::CopyId last_verify{0};  // the head's question after them that was answered last
  };
  [[nodiscard]] HostTier& host_tier() { return host_tier_; }
  /// How decode steps came to the device; null: one that records none of them.
  [[nodiscard]] virtual const tensor::GraphStats* graph_stats() const { return nullptr; }
  /// The page store behind the host tier; null: there is none.
  [[nodiscard]] virtual cache::PageStore* store() { return nullptr; }

 private:
  HostTier host_tier_;
};

}  // namespace millrace::sched
