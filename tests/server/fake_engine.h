#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "async/runtime.h"
#include "sched/head/engine.h"
#include "sched/head/engine_status.h"
#include "sched/head/model_info.h"
#include "sched/plan/pause_mode.h"
#include "sched/plan/request.h"

namespace millrace::test {

namespace asio = boost::asio;

/// The fake engine's answer to one request: one token per byte of `text` (the test tokenizer's ids are bytes).
struct ScriptedReply {
  std::string text = "Hello, world!";
  size_t tokens_per_event = 1;
  std::chrono::milliseconds delay{0};  ///< before each event
  bool is_instant = false;             ///< events are there at once, so that no wait for one suspends
  bool hangs = false;                  ///< after the text: no further event, ever
  std::optional<Error> error;          ///< after the text, instead of a finish
  bool error_is_merged = false;        ///< it comes in one event with the last tokens
  bool ends_with_eos = true;           ///< else it goes on to max_tokens, repeating the text
  uint32_t cached_tokens = 0;
};

/// The vector that the fake engine pools from a prompt: its length, its first token and its last one.
[[nodiscard]] std::vector<float> fake_vector(const std::vector<TokenId>& prompt);

/// An Engine that answers from scripts. Token t's logprob at output position i is -(i + 1) / 8.
class FakeEngine final : public sched::Engine {
 public:
  static constexpr TokenId kEos = 257;
  static constexpr uint32_t kContext = 512;
  static constexpr uint32_t kHiddenSize = 3;

  FakeEngine();
  [[nodiscard]] sched::ModelInfo model_info() const override { return info; }
  [[nodiscard]] sched::EngineStatus status() const override;
  [[nodiscard]] Result<std::unique_ptr<sched::TokenStream>> submit(sched::GenerateRequest request,
                                                                   async::Runtime& runtime) override;
  bool abort(const std::string& request_id) override;
  /// Fails with kConflict while streams live; records `timeout`.
  [[nodiscard]] asio::awaitable<Result<void>> flush_cache(async::Runtime& runtime, async::Duration timeout) override;
  bool pause(sched::PauseMode mode) override {
    paused = mode;
    return true;
  }
  bool resume() override {
    paused.reset();
    return true;
  }
  bool return_waiting(const std::string&) override { return false; }
  bool rebuild(const std::string&) override { return false; }
  [[nodiscard]] std::shared_ptr<const sched::RingView> ring_stats() const override { return stats; }

  /// Waits until no stream lives; returns false after a minute.
  [[nodiscard]] bool wait_until_idle() const;
  [[nodiscard]] bool wait_until_live(int count) const;
  [[nodiscard]] std::vector<sched::GenerateRequest> seen() const;

  sched::ModelInfo info;
  std::shared_ptr<const sched::RingView> stats;  ///< set before the first request
  std::function<Result<ScriptedReply>(const sched::GenerateRequest&)> on_submit;
  std::atomic<bool> ready{true};
  std::atomic<int> live{0};             ///< streams that exist
  std::atomic<int> destroyed_early{0};  ///< streams destroyed before their last event
  std::atomic<uint64_t> events{0};      ///< events handed out
  std::atomic<int> flushes{0};          ///< that succeeded
  std::atomic<bool> flush_hangs{false};
  std::atomic<int> hanging_flushes{0};
  async::Duration last_patience{};  ///< of the flush asked for last
  std::optional<sched::PauseMode> paused;

 private:
  class Stream;
  mutable std::mutex mutex_;
  std::vector<sched::GenerateRequest> seen_;
  std::map<std::string, Stream*> streams_;
};

}  // namespace millrace::test
