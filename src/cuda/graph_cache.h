#pragma once

#include <list>
#include <map>

#include "cuda/submissions.h"
#include "tensor/backend.h"

namespace millrace::cuda {

/// Decode steps as graphs: ops of a key run as they come the first time, are captured the second, and are replayed from
/// then on over what the placed batch holds. The graph that was used least recently goes when there are too many.
class GraphCache final : public tensor::Replay {
 public:
  /// Larger batches spend little of their time on launches.
  static constexpr int64_t kMaxRows = 128;
  static constexpr size_t kMaxGraphs = 256;

  GraphCache(Device& device, const Submissions& submissions) : device_(device), submissions_(submissions) {}
  ~GraphCache() override;
  void run(const tensor::ReplayKey& key, const tensor::PlacedBatch& batch, const std::function<void()>& ops) override;

 private:
  struct Key {
    tensor::ReplayKey ops;
    int32_t context = 0;  // BatchBounds::context
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Graph {
    Key key;
    cudaGraphExec_t executable = nullptr;  // null: the ops have run once
  };
  using Graphs = std::list<Graph>;  // most recently used first
  void clear();
  [[nodiscard]] cudaGraphExec_t capture(const std::function<void()>& ops);

  Device& device_;
  const Submissions& submissions_;
  Graphs graphs_;
  std::map<Key, Graphs::iterator> by_key_;
  uint64_t moves_ = 0;  // Device::moves of the graphs
};

}  // namespace millrace::cuda
