#include "app/starting_engine.h"

#include "sched/head/engine_status.h"
#include "sched/head/ring_view.h"
#include "sched/plan/pause_mode.h"
#include "sched/plan/request.h"

namespace millrace::app {

void StartingEngine::set_awaited(std::string what) {
  const std::lock_guard lock(mutex_);
  awaited_ = std::move(what);
}

sched::ModelInfo StartingEngine::model_info() const {
  const sched::Engine* engine = engine_.load();
  return engine == nullptr ? info_ : engine->model_info();
}

sched::EngineStatus StartingEngine::status() const {
  const sched::Engine* engine = engine_.load();
  sched::EngineStatus status;
  if (engine != nullptr) status = engine->status();
  if (status.ready) return status;
  const std::lock_guard lock(mutex_);
  if (!awaited_.empty()) status.reason += (status.reason.empty() ? "" : "; ") + awaited_;
  return status;
}

Result<std::unique_ptr<sched::TokenStream>> StartingEngine::submit(sched::GenerateRequest request,
                                                                   async::Runtime& runtime) {
  if (sched::Engine* engine = engine_.load()) return engine->submit(std::move(request), runtime);
  return make_error(ErrorCode::kUnavailable, "not ready: {}", status().reason);
}

bool StartingEngine::abort(const std::string& request_id) {
  sched::Engine* engine = engine_.load();
  return engine != nullptr && engine->abort(request_id);
}

asio::awaitable<Result<void>> StartingEngine::flush_cache(async::Runtime& runtime, async::Duration timeout) {
  Result<void> result = make_error(ErrorCode::kUnavailable, "not ready: {}", status().reason);
  if (sched::Engine* engine = engine_.load()) result = co_await engine->flush_cache(runtime, timeout);
  co_return result;
}

bool StartingEngine::pause(sched::PauseMode mode) {
  sched::Engine* engine = engine_.load();
  return engine != nullptr && engine->pause(mode);
}

bool StartingEngine::resume() {
  sched::Engine* engine = engine_.load();
  return engine != nullptr && engine->resume();
}

bool StartingEngine::return_waiting(const std::string& reason) {
  sched::Engine* engine = engine_.load();
  return engine != nullptr && engine->return_waiting(reason);
}

bool StartingEngine::rebuild(const std::string& reason) {
  sched::Engine* engine = engine_.load();
  return engine != nullptr && engine->rebuild(reason);
}

std::shared_ptr<const sched::RingView> StartingEngine::ring_stats() const {
  const sched::Engine* engine = engine_.load();
  return engine == nullptr ? nullptr : engine->ring_stats();
}

}  // namespace millrace::app
