#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "async/mailbox.h"
#include "sched/head/engine.h"
#include "sched/head/engine_status.h"
#include "sched/head/model_info.h"
#include "sched/head/ring_view.h"
#include "sched/plan/generate_event.h"
#include "sched/plan/request.h"

namespace millrace::test {

namespace asio = boost::asio;

/// An Engine whose requests get the events that a test pushes. On one thread.
class ScriptedRing final : public sched::Engine {
 public:
  /// A request that was submitted, and its client's mailbox.
  struct Submitted {
    sched::GenerateRequest request;
    async::Mailbox<sched::GenerateEvent> events;
    bool has_run = false;
    bool is_over = false;  ///< it had its last event, or its stream is gone
    bool is_gone = false;  ///< its stream is gone
  };

  ScriptedRing() {
    state.ready = true;
    state.page_size = 4;
    state.total_pages = 100;
    model.context_length = 64;
    model.kv_token_capacity = 400;
  }

  [[nodiscard]] sched::ModelInfo model_info() const override { return model; }
  [[nodiscard]] sched::EngineStatus status() const override { return state; }
  [[nodiscard]] Result<std::unique_ptr<sched::TokenStream>> submit(sched::GenerateRequest request,
                                                                   async::Runtime& runtime) override {
    ++submissions;
    if (refusal) return *refusal;
    if (!state.ready) return make_error(ErrorCode::kUnavailable, "not ready: {}", state.reason);
    requests.push_back(std::make_shared<Submitted>(
        Submitted{.request = std::move(request), .events = async::Mailbox<sched::GenerateEvent>(runtime, 100)}));
    return std::unique_ptr<sched::TokenStream>(std::make_unique<Stream>(requests.back()));
  }
  bool abort(const std::string& request_id) override {
    for (const auto& each : requests) {
      if (each->is_over || each->request.id != request_id) continue;
      finish(*each, sched::FinishReason::kAbort);
      return true;
    }
    return false;
  }
  [[nodiscard]] asio::awaitable<Result<void>> flush_cache(async::Runtime&, async::Duration timeout) override {
    flush_timeouts.push_back(timeout);
    co_return flush_result;
  }
  bool pause(sched::PauseMode) override { return std::exchange(state.paused, true) || true; }
  bool resume() override { return !std::exchange(state.paused, false) || true; }
  bool return_waiting(const std::string& reason) override {
    ++returns;
    for (const auto& each : requests) {
      if (each->is_over || each->has_run || each->request.ring) continue;
      sched::GenerateEvent event;
      event.error = Error{ErrorCode::kUnavailable, reason};
      event.is_returned = true;
      push(*each, std::move(event));
    }
    return true;
  }
  bool rebuild(const std::string& reason) override {
    rebuilds.push_back(reason);
    return true;
  }

  [[nodiscard]] std::shared_ptr<const sched::RingView> ring_stats() const override { return stats; }

  void push(Submitted& to, sched::GenerateEvent event) {
    to.has_run = to.has_run || !event.tokens.empty();
    to.is_over = to.is_over || event.last();
    (void)to.events.try_push(std::move(event));
  }
  void push_tokens(Submitted& to, std::vector<TokenId> tokens) {
    sched::GenerateEvent event;
    event.tokens = std::move(tokens);
    push(to, std::move(event));
  }
  void finish(Submitted& to, sched::FinishReason reason = sched::FinishReason::kStop) {
    sched::GenerateEvent event;
    event.finish = reason;
    push(to, std::move(event));
  }
  void fail(Submitted& to, Error error) {
    sched::GenerateEvent event;
    event.error = std::move(error);
    push(to, std::move(event));
  }
  /// Stops taking requests, as a broken ring does; `waiting` of them wait.
  void break_down(const std::string& reason, uint32_t waiting = 0) {
    state.ready = false;
    state.reason = reason;
    state.waiting = waiting;
  }

  sched::ModelInfo model;
  sched::EngineStatus state;
  std::shared_ptr<const sched::RingView> stats;
  std::optional<Error> refusal;  ///< of every submission
  Result<void> flush_result;
  std::vector<std::shared_ptr<Submitted>> requests;
  std::vector<async::Duration> flush_timeouts;
  std::vector<std::string> rebuilds;
  int submissions = 0;
  int returns = 0;

 private:
  class Stream final : public sched::TokenStream {
   public:
    explicit Stream(std::shared_ptr<Submitted> submitted) : submitted_(std::move(submitted)) {}
    ~Stream() override {
      submitted_->is_over = submitted_->is_gone = true;
      submitted_->events.close();
    }
    asio::awaitable<sched::GenerateEvent> next() override {
      auto event = co_await submitted_->events.receive();
      co_return std::move(*event);
    }

   private:
    std::shared_ptr<Submitted> submitted_;
  };
};

}  // namespace millrace::test
