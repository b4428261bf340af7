#include "cuda/graph_cache.h"

#include <fmt/core.h>

#include <bit>
#include <exception>
#include <stdexcept>
#include <utility>

#include "base/check.h"
#include "cuda/error.h"

namespace millrace::cuda {
namespace {

struct DestroyCaptured {
  void operator()(cudaGraph_t graph) const { (void)cudaGraphDestroy(graph); }
};

}  // namespace

int32_t GraphCache::bucket(int32_t rows) {
  constexpr int32_t kMaxPowerOfTwoRows = 128;
  constexpr int32_t kStep = 64;
  if (rows <= 0 || rows > kMaxRows) return rows;
  if (rows <= kMaxPowerOfTwoRows) return static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(rows)));
  return (rows + kStep - 1) / kStep * kStep;
}

tensor::BatchSize GraphCache::padded(const tensor::BatchSize& size) const {
  if (size.rows > kMaxRows || size.sequence_rows > kMaxSequenceRows) return size;
  return {bucket(size.rows), bucket(size.sequences), bucket(size.sequence_rows)};
}

tensor::GraphOutcome GraphCache::run(const tensor::ReplayKey& key, const tensor::UploadedBatch& batch,
                                     const std::function<void()>& fill, const std::function<void()>& ops) {
  using tensor::GraphOutcome;
  CHECK(submissions_.inside(), "a replay outside submitted work");
  if (fill) fill();
  const BatchBounds& bounds = static_cast<const CudaBatch*>(batch.handle)->bounds;
  if (key.row_count > kMaxRows || bounds.sequence_rows > kMaxSequenceRows) {
    ops();
    return GraphOutcome::kTooLarge;
  }
  if (relocations_ != device_.relocations) {
    by_key_.clear();
    graphs_.clear();
  }
  relocations_ = device_.relocations;
  const Key whole{
      .ops = key, .sequences = bounds.sequences, .sequence_rows = bounds.sequence_rows, .splits = bounds.splits};
  const auto found = by_key_.find(whole);
  if (found == by_key_.end()) {
    ops();
    if (relocations_ == device_.relocations) remember(whole);  // otherwise the scratch has moved: not counted
    return GraphOutcome::kNew;
  }
  graphs_.splice(graphs_.begin(), graphs_, found->second);
  Graph& graph = graphs_.front();
  const bool is_made = graph.executable != nullptr;
  if (!is_made && (graph.is_disabled || failures_ >= kMaxFailures)) {
    ops();
    return GraphOutcome::kFailed;
  }
  std::string reason = is_made ? std::string() : make(graph, ops);
  if (reason.empty()) reason = launch(graph, fill);
  if (reason.empty()) {
    if (!is_made) failures_ = 0;
    return GraphOutcome::kReplayed;
  }
  ops();  // if these fail too, as on a lost device, the graph was not the cause
  disable(graph, reason);
  return GraphOutcome::kFailed;
}

void GraphCache::remember(const Key& key) {
  graphs_.push_front({key, nullptr});
  by_key_[key] = graphs_.begin();
  if (graphs_.size() <= kMaxGraphs) return;
  by_key_.erase(graphs_.back().key);
  graphs_.pop_back();
}

/// Captures the ops as a graph that is ready on the device. On failure the stream accepts work again, and no op has
/// run.
GraphCache::Executable GraphCache::capture(const std::function<void()>& ops) const {
  const cudaStream_t stream = device_.compute.get();
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  std::exception_ptr failure;
  try {
    ops();
  } catch (...) {
    failure = std::current_exception();
  }
  cudaGraph_t made = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &made);
  const std::unique_ptr<CUgraph_st, DestroyCaptured> captured(made);
  if (failure) {
    (void)cudaGetLastError();  // the error of ending the capture, which follows from the failure
    std::rethrow_exception(failure);
  }
  check(ended, "cudaStreamEndCapture");
  cudaGraphExec_t instance = nullptr;
  check(cudaGraphInstantiate(&instance, captured.get(), 0), "cudaGraphInstantiate");
  Executable executable(instance);
  check(cudaGraphUpload(instance, stream), "cudaGraphUpload");
  return executable;
}

std::string GraphCache::make(Graph& graph, const std::function<void()>& ops) {
  try {
    graph.executable = capture(ops);
    graph.check = submissions_.check_at_end();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string GraphCache::launch(Graph& graph, const std::function<void()>& fill) {
  if (graph.check != nullptr) submissions_.check_at_end(graph.check);
  const cudaError_t outcome = cudaGraphLaunch(graph.executable.get(), device_.compute.get());
  if (outcome == cudaSuccess) return {};
  (void)cudaGetLastError();
  graph.executable.reset();
  const std::string reason = "CUDA: cudaGraphLaunch: " + describe_error(outcome);
  if (!fill) {
    disable(graph, reason);
    fail(reason);
  }
  // Unknown work of the graph has begun. Stream order lets it finish first, and `fill` restores what it changed in
  // place.
  fill();
  return reason;
}

void GraphCache::disable(Graph& graph, const std::string& reason) {
  graph.is_disabled = true;
  ++failures_;
  const Key& key = graph.key;
  const std::string each = key.sequence_rows > 1 ? fmt::format(", {} of a sequence,", key.sequence_rows) : "";
  std::string what =
      fmt::format("device {}: decode steps of up to {} rows{} and {} tokens of all contexts run without a graph: {}{}",
                  device_.ordinal, key.ops.row_count, each, int64_t{key.splits} * kSplitKeys, reason,
                  failures_ == kMaxFailures ? "; no further graph is tried" : "");
  if (!warn_ || what == last_warning_) return;  // each output buffer has its own graph, and so its own warning
  last_warning_ = std::move(what);
  warn_(last_warning_);
}

}  // namespace millrace::cuda
