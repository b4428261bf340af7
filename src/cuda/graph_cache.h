#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "cuda/submissions.h"
#include "tensor/backend.h"

namespace millrace::cuda {

/// Decode steps, with drafts or without, as graphs: ops of a key run as they come the first time, are captured the
/// second, and are replayed from then on over what the uploaded batch holds. Batches are padded to one of few sizes, so
/// there are few keys; the graph that was used least recently goes when there are too many all the same. A key whose
/// graph cannot be made or launched stays with its ops as they come, that step included.
class GraphCache final : public tensor::Replay {
 public:
  /// Larger batches spend little of their time on launches.
  static constexpr int32_t kMaxRows = 512;
  static constexpr size_t kMaxGraphs = 128;
  /// When so many in a row could not be made and launched, no further one is tried.
  static constexpr int kMaxFailures = 4;
  using Warn = std::function<void(const std::string& what)>;

  /// `warn`, which may be empty, is told of each graph that there is none of, and why.
  GraphCache(Device& device, const Submissions& submissions, Warn warn)
      : device_(device), submissions_(submissions), warn_(std::move(warn)) {}
  /// What rows of a batch are padded to: a power of two up to 128, then a multiple of 64. Tiles of products are as wide
  /// as that, and 128 or, with 512 rows, 256 at most: padding adds none, where the next power of two beyond 128 could
  /// double them. The ops that go row by row do compute it, and so it has no more than 63 rows there.
  [[nodiscard]] static int32_t bucket(int32_t rows);
  /// Sequences as rows, since some ops have blocks for each, and rows of one to a power of two up to kMaxSplitKvRows.
  [[nodiscard]] tensor::BatchSize padded(const tensor::BatchSize& size) const override;
  tensor::GraphOutcome run(const tensor::ReplayKey& key, const tensor::UploadedBatch& batch,
                           const std::function<void()>& fill, const std::function<void()>& ops) override;

 private:
  struct Key {
    tensor::ReplayKey ops;
    int32_t sequences = 0;  // as the next, of BatchBounds; of the rows that go on, the same
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
    Executable executable;  // null: the ops have run once, or there will be no graph
    bool is_disabled = false;
  };
  using Graphs = std::list<Graph>;  // most recently used first
  void remember(const Key& key);
  [[nodiscard]] Executable capture(const std::function<void()>& ops) const;
  // Both give why not; empty: it is done.
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
