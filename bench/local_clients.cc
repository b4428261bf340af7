#include "local_clients.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <future>
#include <limits>
#include <thread>

#include "base/random.h"
#include "sched/head/engine_status.h"
#include "sched/plan/generate_event.h"

namespace millrace::bench {
namespace {

asio::awaitable<void> collect(async::Runtime& runtime, sched::Engine& engine, sched::GenerateRequest request,
                              Reply& reply) {
  auto stream = engine.submit(std::move(request), runtime);
  if (stream.has_error()) throw ErrorException(stream.error());
  for (;;) {
    const sched::GenerateEvent event = co_await (*stream)->next();
    if (event.error) throw ErrorException(*event.error);
    reply.tokens.insert(reply.tokens.end(), event.tokens.begin(), event.tokens.end());
    reply.times.resize(reply.tokens.size(), Reply::Clock::now());
    if (event.last()) co_return;
  }
}

asio::awaitable<void> collect_all(async::Runtime& runtime, sched::Engine& engine,
                                  const std::vector<sched::GenerateRequest>& requests, std::vector<Reply>& replies,
                                  std::promise<void>& done) {
  std::exception_ptr error;
  async::TaskGroup tasks(runtime,
                         [&error](const std::string&, std::exception_ptr thrown) { error = std::move(thrown); });
  for (size_t i = 0; i < requests.size(); ++i) {
    tasks.spawn("client", collect(runtime, engine, requests[i], replies[i]));
  }
  co_await tasks.join();
  if (error) {
    done.set_exception(error);
  } else {
    done.set_value();
  }
}

}  // namespace

std::unique_ptr<app::LocalEngine> start_engine(const app::EngineOptions& options) {
  constexpr size_t kAnyVocabulary = std::numeric_limits<size_t>::max();  // requests are of ids: there is no tokenizer
  auto engine = app::LocalEngine::create(options, {}, kAnyVocabulary);
  if (engine.has_error()) throw ErrorException(engine.error());
  if (const auto started = (*engine)->start(); started.has_error()) throw ErrorException(started.error());
  while (!(*engine)->engine().status().ready) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return std::move(*engine);
}

std::vector<Reply> ask(sched::Engine& engine, const std::vector<sched::GenerateRequest>& requests) {
  std::vector<Reply> replies(requests.size());
  async::IoThread thread("clients");
  async::TaskGroup tasks(thread.runtime());
  std::promise<void> done;
  asio::post(thread.context(),
             [&] { tasks.spawn("clients", collect_all(thread.runtime(), engine, requests, replies, done)); });
  std::future<void> result = done.get_future();
  result.wait();
  thread.join();
  result.get();
  return replies;
}

sched::GenerateRequest random_request(const sched::Engine& engine, uint64_t seed, uint32_t prompt, uint32_t output) {
  sched::GenerateRequest request;
  request.id = std::to_string(seed);
  for (uint32_t at = 0; at < prompt; ++at) {
    request.prompt.push_back(static_cast<TokenId>(uniform_at(seed, at) * engine.model_info().vocab_size));
  }
  request.max_tokens = output;
  request.sampling.temperature = 1.0f;
  request.sampling.seed = seed;
  return request;
}

std::string spread(std::vector<double> values, int decimals) {
  std::ranges::sort(values);
  return fmt::format("{:.{}f} [{:.{}f}, {:.{}f}]", values[values.size() / 2], decimals, values.front(), decimals,
                     values.back(), decimals);
}

}  // namespace millrace::bench
