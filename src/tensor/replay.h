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

/// What the launches of a batch's ops are sized by.
struct BatchSize {
  int32_t rows = 0;
  int32_t sequences = 0;
  int32_t sequence_rows = 0;  ///< the most of one sequence
};

/// What a sequence of ops launches, besides what an uploaded batch holds: ops called with equal keys, after the same
/// calls of upload, of batches of equal bounds, launch the same.
struct ReplayKey {
  const std::byte* hidden = nullptr;
  int64_t row_count = 0;  ///< with padding, as the next
  int64_t tail_count = 0;
  friend auto operator<=>(const ReplayKey&, const ReplayKey&) = default;
};

/// How a decode step came to the device: as one recorded piece, or op by op, and why.
enum class GraphOutcome : uint8_t {
  kReplayed,
  kNew,       ///< the first of its kind; the second is recorded
  kFailed,    ///< it could not be recorded, or what was recorded could not be launched
  kTooLarge,  ///< more rows, in all or of one sequence, than are recorded
  kLoading,   ///< it waits for pages, layer by layer
  kOff,       ///< nothing is recorded
};
inline constexpr std::array<std::string_view, 6> kGraphOutcomeNames = {"replayed",  "new",     "failed",
                                                                       "too_large", "loading", "off"};

/// Decode steps since the start. Counted on one thread, read on any.
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

/// Launches again at once what a sequence of ops has launched before (a graph on a GPU; on the CPU the ops are called
/// each time). Owned by a model; destroyed before its backend and after the work that used it.
class Replay {
 public:
  virtual ~Replay() = default;
  /// What a batch of that size is padded to for run(); one that is too large stays as it is.
  [[nodiscard]] virtual BatchSize padded(const BatchSize& size) const { return size; }
  /// Inside submitted work: what `fill`, then `ops` do for `batch`. `ops` neither uploads nor copies to or from the
  /// host. `fill` brings what ops change in place; it is called again where they have to begin anew. Empty: they
  /// cannot, and a failure that wants it fails the work.
  virtual GraphOutcome run(const ReplayKey& key, const UploadedBatch& batch, const std::function<void()>& fill,
                           const std::function<void()>& ops) = 0;
};

}  // namespace millrace::tensor
