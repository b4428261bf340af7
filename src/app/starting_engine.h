#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "sched/head/engine.h"
#include "sched/head/model_info.h"

namespace millrace::app {

/// The engine that the front uses from the first moment on. It is not ready, with a reason that says what is awaited,
/// until set_engine(); then it passes every call on. Owned by LocalEngine; thread-safe.
class StartingEngine final : public sched::Engine {
 public:
  /// Makes an engine that is not ready. `info` is what is known before the start, which lacks the cache's capacity.
  explicit StartingEngine(sched::ModelInfo info) : info_(std::move(info)) {}

  /// Sets what is awaited, e.g. "forming: waiting for node 1 of 2"; empty: nothing. It shows while the engine is not
  /// ready, also when a ring is built again.
  void set_awaited(std::string what);
  /// Passes calls on to `engine` from now on, which outlives every use of this one. Called once.
  void set_engine(sched::Engine& engine) { engine_.store(&engine); }

  [[nodiscard]] sched::ModelInfo model_info() const override;
  [[nodiscard]] sched::EngineStatus status() const override;
  [[nodiscard]] Result<std::unique_ptr<sched::TokenStream>> submit(sched::GenerateRequest request,
                                                                   async::Runtime& runtime) override;
  bool abort(const std::string& request_id) override;
  [[nodiscard]] asio::awaitable<Result<void>> flush_cache(async::Runtime& runtime, async::Duration timeout) override;
  bool pause(sched::PauseMode mode) override;
  bool resume() override;
  bool return_waiting(const std::string& reason) override;
  bool rebuild(const std::string& reason) override;
  [[nodiscard]] std::shared_ptr<const sched::RingView> ring_stats() const override;

 private:
  const sched::ModelInfo info_;
  std::atomic<sched::Engine*> engine_ = nullptr;
  mutable std::mutex mutex_;
  std::string awaited_ = "starting";  // guarded by mutex_
};

}  // namespace millrace::app
