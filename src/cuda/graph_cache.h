#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "cuda/submissions.h"
#include "tensor/backend.h"

namespace millrace::cuda {

/// Decode steps, with or without drafts, as graphs. The ops of a key run one by one the first time, are captured the
/// second, and are replayed from then on. A replay reads the contents of the uploaded batch. Batches are padded to one
/// of few sizes, so there are few keys; the least recently used graph is evicted when there are too many. A key whose
/// graph cannot be made or launched runs op by op from that step on.
class GraphCache final : public tensor::Replay {
 public:
  /// Maximum of rows; larger batches spend little of their time on launches.
  static constexpr int32_t kMaxRows = 512;
  /// Maximum of rows of one sequence. A step of a model with states has up to two rows per draft and one more.
  static constexpr int32_t kMaxSequenceRows = 32;
  static constexpr size_t kMaxGraphs = 128;
  /// Consecutive failures to make or launch a graph after which no more are tried.
  static constexpr int kMaxFailures = 4;
  using Warn = std::function<void(const std::string& what)>;

  /// `warn`, which may be empty, receives the reason for each graph that cannot be used.
  GraphCache(Device& device, const Submissions& submissions, Warn warn)
      : device_(device), submissions_(submissions), warn_(std::move(warn)) {}
  /// Returns the padded number of rows: a power of two up to 128, then a multiple of 64. GEMM tiles have these widths,
  /// and at most 128 or, with 512 rows, 256. Padding therefore adds no tile, whereas the next power of two after 128
  /// could double them. Ops that work row by row compute the padding, which is at most 63 rows there.
  [[nodiscard]] static int32_t bucket(int32_t rows);
  /// Returns the padded bounds. Sequences are padded like rows, since some ops have blocks for each. Rows of one
  /// sequence are padded to a power of two up to kMaxSequenceRows.
  [[nodiscard]] tensor::BatchSize padded(const tensor::BatchSize& size) const override;
  tensor::GraphOutcome run(const tensor::ReplayKey& key, const tensor::UploadedBatch& batch,
                           const std::function<void()>& fill, const std::function<void()>& ops) override;

 private:
  struct Key {
    tensor::ReplayKey ops;
    int32_t sequences = 0;  // from BatchBounds, like the next two
    int32_t sequence_rows = 0;
    int32_t splits = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Destroy {
    void operator()(cudaGraphExec_t executable) const { (void)cudaGraphExecDestroy(executable); }
  };
  using Executable = std::unique_ptr<CUgraphExec_st, Destroy>;
  struct Graph {
    Key key;
    Executable executable;                            // null: the ops have run once, or there will be no graph
    std::shared_ptr<const Submissions::Check> check;  // of its work
    bool is_disabled = false;
  };
  using Graphs = std::list<Graph>;  // most recently used first
  void remember(const Key& key);
  [[nodiscard]] Executable capture(const std::function<void()>& ops) const;
  // Makes a graph. Like its successor, it returns the reason of a failure; empty: success.
  [[nodiscard]] std::string make(Graph& graph, const std::function<void()>& ops);
  [[nodiscard]] std::string launch(Graph& graph, const std::function<void()>& fill);
  void disable(Graph& graph, const std::string& reason);

  Device& device_;
  const Submissions& submissions_;
  Graphs graphs_;
  std::map<Key, Graphs::iterator> by_key_;
  uint64_t relocations_ = 0;  // Device::relocations of the graphs
  const Warn warn_;
  int failures_ = 0;          // since one that was made was launched
  std::string last_warning_;  // last
};

}  // namespace millrace::cuda
