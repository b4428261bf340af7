#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/exchange.h"
#include "server/pooling_spec.h"
#include "server/response_context.h"
#include "server/stream_set.h"

namespace millrace::server {

/// Pools the prompts of one request in the engine, a bounded number of them at once. Lives in the frame of
/// PoolingRoutes::serve, which awaits `finish` whatever happened to `run`; the server's executor only.
class PoolingTask {
 public:
  PoolingTask(const ResponseContext& context, PoolingSpec spec, Exchange& exchange);
  PoolingTask(const PoolingTask&) = delete;
  PoolingTask& operator=(const PoolingTask&) = delete;

  [[nodiscard]] const openai::PoolingInfo& info() const { return spec_.info; }
  /// Submits the prompts. Returns when all vectors have come, or with the reason of a failure.
  [[nodiscard]] asio::awaitable<std::optional<openai::ApiError>> run();
  /// Returns the pooled rows of each prompt, once run() has succeeded.
  [[nodiscard]] std::vector<std::vector<float>> take_vectors() { return std::move(vectors_); }
  /// Drops what is left of the streams. Not cancellable.
  [[nodiscard]] asio::awaitable<void> finish() { return streams_.finish(); }
  /// Wakes `run`, which checks again what it waits for.
  void wake() { streams_.wake(); }
  /// Aborts the prompts at the engine; returns their count. Those not submitted yet never will be.
  size_t abort();

 private:
  using Failure = std::optional<openai::ApiError>;

  Failure submit_more();
  Failure process_events();
  Failure process_event(StreamSet::Arrival& arrival);
  void record_metrics(const sched::GenerateEvent& event, size_t index);

  const ResponseContext& context_;
  PoolingSpec spec_;
  Exchange& exchange_;
  StreamSet streams_;
  std::vector<size_t> prompt_sizes_;         ///< tokens of each prompt
  std::vector<std::vector<float>> vectors_;  ///< [prompts]; empty: not there yet
  size_t submitted_ = 0;
  size_t finished_ = 0;
  bool is_aborted_ = false;
};

}  // namespace millrace::server
