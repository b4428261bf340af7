#pragma once

#include <array>
#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

namespace millrace::tensor {

struct UploadedBatch;

/// Upper bounds of a batch that determine the launch sizes of its ops.
struct BatchSize {
  int32_t rows = 0;
  int32_t sequences = 0;
  int32_t sequence_rows = 0;  ///< upper bound of the rows of any one sequence
};

/// Identifies what a sequence of ops launches, apart from the contents of an uploaded batch. Ops launch the same when
/// their keys, the preceding calls of upload and the bounds of the batch are equal.
struct ReplayKey {
  const std::byte* hidden = nullptr;
  int64_t row_count = 0;   ///< padded rows of the batch
  int64_t tail_count = 0;  ///< padded rows that go on from the last layer's keys and values
  int32_t context = 0;     ///< BatchLayout::padded_context
  friend auto operator<=>(const ReplayKey&, const ReplayKey&) = default;
};

/// How the ops of a decode step were launched: as one recorded graph, or one by one, with the reason.
enum class GraphOutcome : uint8_t {
  kReplayed,
  kNew,       ///< the first step of its shape, launched op by op; the second is recorded
  kFailed,    ///< recording it, or launching the recorded graph, failed
  kTooLarge,  ///< it has more rows, in all or of one sequence, than the largest graph
  kLoading,   ///< it waits for page copies, layer by layer
  kOff,       ///< graphs are off, or the host takes part in the step's ops
};
inline constexpr std::array<std::string_view, 6> kGraphOutcomeNames = {"replayed",  "new",     "failed",
                                                                       "too_large", "loading", "off"};

/// Counts decode steps since the start by GraphOutcome. One thread counts, any thread reads.
class GraphStats {
 public:
  using Counts = std::array<uint64_t, kGraphOutcomeNames.size()>;  // by GraphOutcome
  void count(GraphOutcome step) { counts_[static_cast<size_t>(step)].fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] Counts counts() const {
    Counts counts{};
    for (size_t i = 0; i < counts.size(); ++i) counts[i] = counts_[i].load(std::memory_order_relaxed);
    return counts;
  }

 private:
  std::array<std::atomic<uint64_t>, kGraphOutcomeNames.size()> counts_{};
};

/// Launches a recorded sequence of ops again as one graph. The CPU records nothing and calls the ops each time. Owned
/// by a model; destroyed before its backend and after the work that used it.
class Replay {
 public:
  virtual ~Replay() = default;
  /// Returns the size to which run() wants a batch padded. A batch too large to be recorded keeps its size.
  [[nodiscard]] virtual BatchSize padded(const BatchSize& size) const { return size; }
  /// Performs `fill`, then `ops`, for `batch`; called inside submitted work. `ops` neither upload nor copy to or from
  /// the host. `fill` initialises what the ops change in place; a failed graph calls it again before it starts anew. An
  /// empty `fill` means that the ops cannot start anew: such a failure then fails the work.
  virtual GraphOutcome run(const ReplayKey& key, const UploadedBatch& batch, const std::function<void()>& fill,
                           const std::function<void()>& ops) = 0;
};

/// A Replay that records nothing: each run() calls `fill` and `ops`. For devices without graphs, and where graphs are
/// switched off.
class EagerReplay final : public Replay {
 public:
  GraphOutcome run(const ReplayKey& /*key*/, const UploadedBatch& /*batch*/, const std::function<void()>& fill,
                   const std::function<void()>& ops) override {
    if (fill) fill();
    ops();
    return GraphOutcome::kOff;
  }
};

}  // namespace millrace::tensor
