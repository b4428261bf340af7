#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "sched/head/engine.h"

namespace millrace::app {

/// The engine as the front sees it from the first moment on: not ready, for a reason that says what is awaited, until
/// the engine proper is there; that one from then on. Thread-safe, as Engine is.
class StartingEngine final : public sched::Engine {
 public:
  /// `info`: what is known before the start; the capacity of the cache is not.
  explicit StartingEngine(sched::ModelInfo info) : info_(std::move(info)) {}

  /// What is awaited, e.g. "forming: waiting for node 1 of 2"; empty: nothing. A ring that forms again says it too.
  void set_awaited(std::string what);
  /// Once; `engine` lives as long as anybody uses this one.
  void set_engine(sched::Engine& engine) { engine_.store(&engine); }

  [[nodiscard]] const sched::ModelInfo& model_info() const override;
  [[nodiscard]] sched::EngineStatus status() const override;
  [[nodiscard]] Result<std::unique_ptr<sched::TokenStream>> submit(sched::GenerateRequest request,
                                                                   async::Runtime& runtime) override;
  bool abort(const std::string& request_id) override;
  [[nodiscard]] asio::awaitable<Result<void>> flush_cache(async::Runtime& runtime, async::Duration timeout) override;
  bool pause(sched::PauseMode mode) override;
  bool resume() override;
  [[nodiscard]] const sched::RingStats* ring_stats() const override;

 private:
  const sched::ModelInfo info_;
  std::atomic<sched::Engine*> engine_ = nullptr;
  mutable std::mutex mutex_;
  std::string awaited_ = "starting";  // guarded by mutex_
};

}  // namespace millrace::app
