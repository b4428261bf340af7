#pragma once

#include <list>
#include <map>

#include "cuda/submissions.h"
#include "tensor/backend.h"

namespace millrace::cuda {

/// Decode steps as graphs: ops of a key run as they come the first time, are captured the second, and are replayed from
/// then on over what the placed batch holds. Batches are padded to a power of two of rows, so there are few keys; the
/// graph that was used least recently goes when there are too many all the same.
class GraphCache final : public tensor::Replay {
 public:
  /// Larger batches spend little of their time on launches.
  static constexpr int64_t kMaxRows = 128;
  static constexpr size_t kMaxGraphs = 128;

  GraphCache(Device& device, const Submissions& submissions) : device_(device), submissions_(submissions) {}
  ~GraphCache() override;
  /// What rows of a batch are padded to. Tiles of products have such sizes, so padding costs them next to nothing.
  [[nodiscard]] static int32_t bucket(int32_t rows);
  [[nodiscard]] int32_t padded_rows(int32_t rows) const override { return bucket(rows); }
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
