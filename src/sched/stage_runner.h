#pragma once

#include <boost/asio/awaitable.hpp>
#include <span>
#include <vector>

#include "async/runtime.h"
#include "sched/plan.h"
#include "sched/sequence_table.h"

namespace millrace::sched {

/// Runs plans on a stage's layers. Owned by whoever hosts the stage, over all generations
/// of the ring; called by the stage loop on the stage's thread, one plan at a time.
class StageRunner {
 public:
  virtual ~StageRunner() = default;

  /// Bytes of activations per row that leave this stage, and that come in; 0 on the last and on the first stage.
  [[nodiscard]] virtual size_t output_row_bytes() const = 0;
  [[nodiscard]] virtual size_t input_row_bytes() const = 0;

  /// Runs a non-empty batch. `input`: [rows, hidden] from the stage before, empty on the first. The result's
  /// activations stay valid until the second run after this one (two output buffers take turns). Throws when the device
  /// fails.
  struct Result {
    std::span<const std::byte> activations;  // [rows, hidden]; empty on the last stage
    std::vector<SliceOutput> outputs;        ///< as the slices; empty but on the last stage
  };
  [[nodiscard]] virtual asio::awaitable<Result> run(const StageBatch& batch, std::span<const std::byte> input) = 0;
};

}  // namespace millrace::sched
