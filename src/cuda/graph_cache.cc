#include "cuda/graph_cache.h"

#include <bit>

#include "base/check.h"
#include "cuda/error.h"

namespace millrace::cuda {

int32_t GraphCache::bucket(int32_t rows) {
  return rows > 0 && rows <= kMaxRows ? static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(rows))) : rows;
}

GraphCache::~GraphCache() {
  clear();
}

void GraphCache::clear() {
  for (const Graph& graph : graphs_) {
    if (graph.executable != nullptr) (void)cudaGraphExecDestroy(graph.executable);
  }
  graphs_.clear();
  by_key_.clear();
}

void GraphCache::run(const tensor::ReplayKey& key, const tensor::PlacedBatch& batch, const std::function<void()>& ops) {
  CHECK(submissions_.inside(), "a replay outside submitted work");
  if (key.row_count > kMaxRows) return ops();
  if (moves_ != device_.moves) clear();
  moves_ = device_.moves;
  const Key whole{key, static_cast<const CudaBatch*>(batch.placed)->bounds.context};
  const auto found = by_key_.find(whole);
  if (found == by_key_.end()) {
    ops();
    if (moves_ != device_.moves) return;  // the scratch has grown: this time does not count
    graphs_.push_front({whole, nullptr});
    by_key_[whole] = graphs_.begin();
    if (graphs_.size() <= kMaxGraphs) return;
    if (graphs_.back().executable != nullptr) (void)cudaGraphExecDestroy(graphs_.back().executable);
    by_key_.erase(graphs_.back().key);
    graphs_.pop_back();
    return;
  }
  graphs_.splice(graphs_.begin(), graphs_, found->second);
  Graph& graph = graphs_.front();
  if (graph.executable == nullptr) graph.executable = capture(ops);
  check(cudaGraphLaunch(graph.executable, device_.compute.get()), "cudaGraphLaunch");
}

cudaGraphExec_t GraphCache::capture(const std::function<void()>& ops) {
  const cudaStream_t stream = device_.compute.get();
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    ops();
  } catch (...) {
    if (cudaStreamEndCapture(stream, &graph) == cudaSuccess && graph != nullptr) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t outcome = cudaGraphInstantiate(&executable, graph, 0);
  (void)cudaGraphDestroy(graph);
  check(outcome, "cudaGraphInstantiate");
  return executable;
}

}  // namespace millrace::cuda
