#pragma once

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "app/local_engine.h"
#include "async/task_group.h"
#include "base/random.h"
#include "sched/plan/finish_reason.h"
#include "sched/plan/generate_event.h"
#include "sched/plan/pause_mode.h"
#include "sched/plan/request.h"
#include "support/paths.h"

/// Engines over the golden models, and clients that ask them.
namespace millrace::test {

struct Reply {
  std::vector<TokenId> tokens;
  std::vector<tensor::TokenLogprobs> logprobs;
  std::vector<tensor::TokenLogprobs> prompt_logprobs;
  std::optional<sched::FinishReason> finish;
  std::optional<Error> error;
  uint32_t cached_tokens = 0;
};

/// Starts an engine over a model with `vocab_size` ids, and waits until it is ready.
inline std::unique_ptr<app::LocalEngine> start_engine(const app::EngineOptions& options, uint32_t vocab_size) {
  auto engine = app::LocalEngine::create(options, {}, vocab_size);
  if (engine.has_error()) FAIL(engine.error().message);
  REQUIRE_FALSE((*engine)->engine().status().ready);
  REQUIRE_FALSE((*engine)->start().has_error());
  while (!(*engine)->engine().status().ready) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return std::move(*engine);
}

inline asio::awaitable<void> collect(async::Runtime& runtime, sched::Engine& engine, sched::GenerateRequest request,
                                     Reply& reply) {
  auto stream = engine.submit(std::move(request), runtime);
  if (stream.has_error()) {
    reply.error = stream.error();
    co_return;
  }
  for (;;) {
    sched::GenerateEvent event = co_await (*stream)->next();
    reply.tokens.insert(reply.tokens.end(), event.tokens.begin(), event.tokens.end());
    reply.logprobs.insert(reply.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    if (!event.prompt_logprobs.empty()) reply.prompt_logprobs = std::move(event.prompt_logprobs);
    reply.cached_tokens = std::max(reply.cached_tokens, event.cached_tokens);
    reply.finish = event.finish;
    reply.error = event.error;
    if (event.last()) co_return;
  }
}

inline asio::awaitable<void> resume(sched::Engine& engine) {
  REQUIRE(engine.resume());
  co_return;
}

inline asio::awaitable<void> collect_all(async::Runtime& runtime, sched::Engine& engine,
                                         const std::vector<sched::GenerateRequest>& requests,
                                         std::vector<Reply>& replies, std::promise<void>& done) {
  async::TaskGroup tasks(runtime);
  // All are in the queue before the first begins, however long this thread stands still meanwhile.
  REQUIRE(engine.pause(sched::PauseMode::kInPlace));
  for (size_t i = 0; i < requests.size(); ++i) {
    tasks.spawn("client", collect(runtime, engine, requests[i], replies[i]));
  }
  tasks.spawn("resume", resume(engine));
  co_await tasks.join();
  done.set_value();
}

/// Sends all requests at once and waits for all replies.
inline std::vector<Reply> ask(sched::Engine& engine, const std::vector<sched::GenerateRequest>& requests) {
  std::vector<Reply> replies(requests.size());
  async::IoThread thread("clients");
  async::TaskGroup tasks(thread.runtime());
  std::promise<void> done;
  asio::post(thread.context(),
             [&] { tasks.spawn("clients", collect_all(thread.runtime(), engine, requests, replies, done)); });
  done.get_future().get();
  thread.join();
  return replies;
}

/// Requests of many kinds: lengths, samplers, penalties, logprobs.
inline std::vector<sched::GenerateRequest> mixed_requests(size_t count) {
  std::vector<sched::GenerateRequest> requests(count);
  for (size_t i = 0; i < count; ++i) {
    sched::GenerateRequest& request = requests[i];
    const auto dice = [&](uint64_t draw) { return uniform_at(i, draw); };
    request.id = std::to_string(i);
    const auto length = 1 + static_cast<size_t>(dice(0) * 150);
    for (size_t at = 0; at < length; ++at) request.prompt.push_back(static_cast<TokenId>(dice(100 + at) * 512));
    request.max_tokens = 1 + static_cast<uint32_t>(dice(1) * 100);
    request.sampling.temperature = i % 3 == 0 ? 0.0f : 0.9f;
    request.sampling.seed = i * 7919;
    if (i % 4 == 1) request.sampling.top_p = 0.8f;
    if (i % 4 == 2) request.sampling.top_k = 20;
    if (i % 5 == 3) request.sampling.repetition_penalty = 1.3f;
    if (i % 5 == 4) request.sampling.frequency_penalty = 0.7f;
    if (i % 2 == 0) request.sampling.top_logprobs = 3;
  }
  return requests;
}

inline bool same_bits(const tensor::TokenLogprobs& a, const tensor::TokenLogprobs& b) {
  return a.token == b.token && std::bit_cast<uint32_t>(a.logprob) == std::bit_cast<uint32_t>(b.logprob) &&
         a.rank == b.rank && a.top == b.top;
}

inline void require_same(const Reply& got, const Reply& wanted) {
  INFO("error: " << (got.error ? got.error->message : "none"));
  REQUIRE_FALSE(got.error.has_value());
  REQUIRE(got.tokens == wanted.tokens);
  REQUIRE(got.finish == wanted.finish);
  REQUIRE(
      std::equal(got.logprobs.begin(), got.logprobs.end(), wanted.logprobs.begin(), wanted.logprobs.end(), same_bits));
}

inline app::EngineOptions options_for(const std::string& family, int32_t pp_size) {
  app::EngineOptions options;
  options.model_path = test::source_dir() / "tests/golden" / family;
  options.pp_size = pp_size;
  options.node.threads = 1;
  options.stage.page_size = 16;
  options.max_total_tokens = 4096;
  return options;
}

}  // namespace millrace::test
