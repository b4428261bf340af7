#include "sched/head/engine_status.h"
#include "sched/plan/finish_reason.h"
#include "sched/plan/generate_event.h"
#include "sched/plan/pause_mode.h"
#include "sched/plan/request.h"
#include "sched/router/ring_router.h"

#include <catch2/catch.hpp>

#include "async/task_group.h"
#include "async/virtual_runtime.h"
#include "sched/router/scripted_ring.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::sched;
using namespace std::chrono_literals;
using test::Mentions;
using test::ScriptedRing;

namespace {

GenerateRequest request_of(std::string id, std::vector<TokenId> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
  GenerateRequest request;
  request.id = std::move(id);
  request.prompt = std::move(prompt);
  return request;
}

/// What one client has received.
struct Received {
  std::vector<TokenId> tokens;
  std::optional<FinishReason> finish;
  std::optional<Error> error;
  [[nodiscard]] bool ended() const { return finish || error; }
};

asio::awaitable<void> read_all(TokenStream& stream, Received& received) {
  for (;;) {
    GenerateEvent event = co_await stream.next();
    received.tokens.insert(received.tokens.end(), event.tokens.begin(), event.tokens.end());
    received.finish = event.finish;
    received.error = event.error;
    if (event.last()) co_return;
  }
}

asio::awaitable<void> flush_all(Engine& engine, async::Runtime& runtime, async::Duration timeout,
                                std::optional<Result<void>>& outcome) {
  outcome = co_await engine.flush_cache(runtime, timeout);
}

/// A router over two scripted rings, and a client.
struct World {
  explicit World(RouterOptions options = {.max_running = 64, .page_size = 4}) : router(runtime, {&a, &b}, options) {
    tasks.spawn("router", router.run());
    run(1ms);
  }
  ~World() {
    router.stop();
    clients.cancel();
    virtual_world.run();
  }
  void run(async::Duration duration) { virtual_world.run(virtual_world.now() + duration); }
  TokenStream& submit(GenerateRequest request) {
    streams.push_back(std::move(router.submit(std::move(request), client)).value());
    return *streams.back();
  }
  void read(TokenStream& stream, Received& received) { clients.spawn("client", read_all(stream, received)); }

  async::VirtualWorld virtual_world{1};
  async::Runtime& runtime = virtual_world.add_thread();
  async::Runtime& client = virtual_world.add_thread();
  ScriptedRing a;
  ScriptedRing b;
  RingRouter router;
  std::vector<std::unique_ptr<TokenStream>> streams;
  async::TaskGroup tasks{runtime};
  async::TaskGroup clients{client};
};

}  // namespace

TEST_CASE("a conversation stays on the ring that has its pages") {
  World world;
  TokenStream& first = world.submit(request_of("a"));
  REQUIRE(world.a.requests.size() == 1);
  Received received;
  world.read(first, received);
  world.a.push_tokens(*world.a.requests[0], {10, 11, 12});
  world.a.push_tokens(*world.a.requests[0], {13});
  world.a.finish(*world.a.requests[0]);
  world.run(1ms);
  REQUIRE(received.tokens == std::vector<TokenId>{10, 11, 12, 13});
  REQUIRE(received.finish == FinishReason::kStop);
  // Prompt and output fill three pages, of which the last has the first output tokens.
  world.submit(request_of("b", {50, 51, 52, 53, 54}));
  REQUIRE(world.b.requests.size() == 1);
  world.submit(request_of("c", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}));
  REQUIRE(world.a.requests.size() == 2);
  REQUIRE(world.router.report(0).routed[static_cast<size_t>(RouteReason::kPrefix)].requests == 1);
}

TEST_CASE("choices of one prompt stay together") {
  World world;
  for (int i = 0; i < 6; ++i) world.submit(request_of(std::to_string(i)));
  REQUIRE(world.a.requests.size() == 6);
  world.submit(request_of("other", {70, 71, 72, 73, 74}));
  REQUIRE(world.b.requests.size() == 1);
}

TEST_CASE("the queue of a broken ring moves to another") {
  World world;
  Received received;
  world.read(world.submit(request_of("a")), received);
  world.a.break_down("the ring is broken: stage 1 is silent", 1);
  world.run(200ms);
  REQUIRE(world.b.requests.size() == 1);
  const GenerateRequest& moved = world.b.requests[0]->request;
  REQUIRE(moved.prompt == request_of("a").prompt);
  REQUIRE(moved.waited_us > 0);
  REQUIRE(world.router.report(0).moved == 1);
  REQUIRE(world.a.requests[0]->is_gone);
  world.b.push_tokens(*world.b.requests[0], {7});
  world.b.finish(*world.b.requests[0]);
  world.run(1ms);
  REQUIRE(received.tokens == std::vector<TokenId>{7});
  REQUIRE(received.finish == FinishReason::kStop);
  REQUIRE_FALSE(received.error.has_value());
}

TEST_CASE("a request that has run fails with its ring") {
  World world;
  Received received;
  world.read(world.submit(request_of("a")), received);
  world.a.push_tokens(*world.a.requests[0], {7});
  world.run(1ms);
  world.a.break_down("the ring is broken: stage 1 is silent", 1);
  world.a.fail(*world.a.requests[0], {ErrorCode::kUnavailable, "the ring is broken: stage 1 is silent"});
  world.run(200ms);
  REQUIRE(received.tokens == std::vector<TokenId>{7});
  REQUIRE(received.error->code == ErrorCode::kUnavailable);
  REQUIRE(world.b.requests.empty());
}

TEST_CASE("queues stay where they are while no other ring serves") {
  World world;
  Received received;
  world.read(world.submit(request_of("a")), received);
  world.b.break_down("stage 0 is silent");
  world.a.break_down("stage 1 is silent", 1);
  world.run(500ms);
  REQUIRE(world.a.returns == 0);
  REQUIRE(world.router.status().reason == "ring 0: stage 1 is silent; ring 1: stage 0 is silent");
  REQUIRE(world.router.submit(request_of("b"), world.client).error().code == ErrorCode::kUnavailable);
  world.b.state.ready = true;
  world.run(200ms);
  REQUIRE(world.b.requests.size() == 1);
}

TEST_CASE("a returned request without a ring waits for one") {
  World world;
  Received received;
  world.read(world.submit(request_of("a")), received);
  world.a.break_down("stage 1 is silent", 1);
  world.b.refusal = Error{ErrorCode::kUnavailable, "it broke at this moment"};
  world.run(500ms);
  REQUIRE(world.b.requests.empty());
  REQUIRE_FALSE(received.ended());
  world.b.refusal.reset();
  world.run(100ms);
  REQUIRE(world.b.requests.size() == 1);
  REQUIRE(world.b.requests[0]->request.waited_us > 400'000);
}

TEST_CASE("an abort reaches a request that is between two rings") {
  World world;
  TokenStream& stream = world.submit(request_of("a"));
  world.a.break_down("stage 1 is silent", 1);
  world.run(100ms);  // the event that returns it is there, and nobody has read it
  REQUIRE(world.a.requests[0]->is_over);
  REQUIRE(world.router.abort("a"));
  Received received;
  world.read(stream, received);
  world.run(100ms);
  REQUIRE(received.finish == FinishReason::kAbort);
  REQUIRE(world.b.requests.empty());
  REQUIRE_FALSE(world.router.abort("a"));
}

TEST_CASE("an abort of one ring spares the others") {
  World world({.method = LoadBalanceMethod::kRoundRobin, .max_running = 64, .page_size = 4});
  std::vector<Received> received(4);
  for (size_t i = 0; i < received.size(); ++i) world.read(world.submit(request_of(std::to_string(i))), received[i]);
  REQUIRE(world.router.abort_all(1) == 2);
  world.run(1ms);
  for (size_t i = 0; i < received.size(); ++i) {
    REQUIRE(received[i].finish == (i % 2 == 1 ? std::optional(FinishReason::kAbort) : std::nullopt));
  }
}

TEST_CASE("a destroyed stream frees its id wherever it is") {
  World world;
  world.submit(request_of("a"));
  REQUIRE(world.router.submit(request_of("a"), world.client).error().code == ErrorCode::kConflict);
  world.streams.clear();
  REQUIRE(world.a.requests[0]->is_gone);
  TokenStream& between = world.submit(request_of("a"));
  world.b.refusal = Error{ErrorCode::kUnavailable, "no"};
  world.a.break_down("stage 1 is silent", 1);
  Received received;
  world.read(between, received);
  world.run(120ms);
  world.clients.cancel();
  world.run(1ms);
  world.streams.clear();
  world.a.state = ScriptedRing().state;
  REQUIRE(world.router.submit(request_of("a"), world.client).has_value());
}

TEST_CASE("a pinned request goes to its ring or nowhere") {
  World world;
  GenerateRequest request = request_of("a");
  request.ring = 1;
  world.submit(request);
  REQUIRE(world.b.requests.size() == 1);
  request.id = "b";
  request.ring = 2;
  const auto unknown = world.router.submit(request, world.client);
  REQUIRE(unknown.error().code == ErrorCode::kInvalidArgument);
  REQUIRE_THAT(unknown.error().message, Mentions("2", "0 to 1"));
  world.b.break_down("stage 1 is silent", 1);
  world.run(200ms);
  REQUIRE(world.a.requests.empty());
  request.ring = 1;
  const auto refused = world.router.submit(request, world.client);
  REQUIRE(refused.error().code == ErrorCode::kUnavailable);
  REQUIRE_THAT(refused.error().message, Mentions("ring 1", "stage 1 is silent"));
}

TEST_CASE("a drained ring gets no requests and gives its queue away") {
  World world;
  Received received;
  world.read(world.submit(request_of("a")), received);
  REQUIRE_FALSE(world.router.drain(0).has_error());
  REQUIRE(world.router.drain(1).error().code == ErrorCode::kConflict);
  world.run(100ms);
  REQUIRE(world.b.requests.size() == 1);
  for (int i = 0; i < 3; ++i) world.submit(request_of("more " + std::to_string(i), {TokenId(i)}));
  REQUIRE(world.b.requests.size() == 4);
  REQUIRE(world.router.status().ready);
  REQUIRE(world.router.status().degraded == "ring 0: draining");
  REQUIRE(world.router.report(0).is_draining);
  GenerateRequest pinned = request_of("pinned");
  pinned.ring = 0;
  REQUIRE(world.router.submit(pinned, world.client).error().code == ErrorCode::kUnavailable);
  world.router.undrain(0);
  REQUIRE(world.router.status().degraded.empty());
  REQUIRE(world.router.submit(request_of("last", {99}), world.client).has_value());
  REQUIRE(world.a.requests.size() == 2);
}

TEST_CASE("a restarted ring serves once it has been built again") {
  World world;
  REQUIRE_FALSE(world.router.drain(0).has_error());
  REQUIRE(world.router.restart(0));
  REQUIRE(world.a.rebuilds.size() == 1);
  world.run(200ms);  // it has not broken yet
  world.submit(request_of("a"));
  REQUIRE(world.a.requests.empty());
  world.a.break_down("the ring is broken");
  world.run(60ms);
  REQUIRE(world.router.status().degraded == "ring 0: the ring is broken");
  world.a.state.ready = true;
  world.run(60ms);
  REQUIRE(world.router.status().degraded.empty());
  REQUIRE_FALSE(world.router.report(0).is_draining);
  world.submit(request_of("b", {1, 2}));
  REQUIRE(world.a.requests.size() == 1);
}

TEST_CASE("a ring that refuses is passed over") {
  World world;
  world.a.refusal = Error{ErrorCode::kExhausted, "too many at once"};
  world.submit(request_of("a"));
  REQUIRE(world.b.requests.size() == 1);
  world.b.refusal = Error{ErrorCode::kInvalidArgument, "too long"};
  REQUIRE(world.router.submit(request_of("b"), world.client).has_error());
  REQUIRE(world.a.submissions == 2);
}

TEST_CASE("a paused ring gets requests only when all are paused") {
  World world;
  world.a.pause(PauseMode::kInPlace);
  world.submit(request_of("a"));
  REQUIRE(world.b.requests.size() == 1);
  REQUIRE_FALSE(world.router.status().paused);
  REQUIRE(world.router.pause(PauseMode::kInPlace));
  REQUIRE(world.router.status().paused);
  world.submit(request_of("b", {30, 31}));
  REQUIRE(world.a.requests.size() == 1);
  REQUIRE(world.router.resume());
  REQUIRE_FALSE(world.a.state.paused);
  REQUIRE_FALSE(world.b.state.paused);
}

TEST_CASE("a flush of all rings names the one that refuses") {
  World world;
  world.b.flush_result = make_error(ErrorCode::kConflict, "3 requests run");
  std::optional<Result<void>> outcome;
  world.clients.spawn("flush", flush_all(world.router, world.client, 2s, outcome));
  world.run(1ms);
  REQUIRE(outcome->error().code == ErrorCode::kConflict);
  REQUIRE_THAT(outcome->error().message, Mentions("ring 1", "3 requests run"));
  REQUIRE(world.a.flush_timeouts == std::vector<async::Duration>{2s});
  REQUIRE(world.b.flush_timeouts.size() == 1);
}

TEST_CASE("a flushed ring is not asked for its old prefixes") {
  World world;
  world.submit(request_of("a"));
  REQUIRE(world.a.requests.size() == 1);
  std::optional<Result<void>> outcome;
  world.clients.spawn("flush", flush_all(world.router, world.client, 2s, outcome));
  world.run(1ms);
  world.submit(request_of("b"));  // the other queue is shorter
  REQUIRE(world.b.requests.size() == 1);
}

TEST_CASE("the queue limit counts the time between rings") {
  World world({.max_running = 64, .page_size = 4, .queue_timeout = 300ms});
  Received received;
  world.read(world.submit(request_of("a")), received);
  world.b.refusal = Error{ErrorCode::kUnavailable, "no"};
  world.a.break_down("stage 1 is silent", 1);
  world.run(250ms);
  REQUIRE_FALSE(received.ended());
  world.run(200ms);
  REQUIRE(received.error->code == ErrorCode::kTimeout);
}

TEST_CASE("a stopped router ends what is between rings") {
  World world;
  Received received;
  world.read(world.submit(request_of("a")), received);
  world.b.refusal = Error{ErrorCode::kUnavailable, "no"};
  world.a.break_down("stage 1 is silent", 1);
  world.run(120ms);
  world.router.stop();
  world.run(100ms);
  REQUIRE(received.error->code == ErrorCode::kAborted);
  REQUIRE(world.router.submit(request_of("b"), world.client).error().code == ErrorCode::kUnavailable);
}

TEST_CASE("several rings together have the sum of their pages") {
  World world;
  world.a.state.running = 2;
  world.b.state.running = 3;
  world.a.state.cache.device_hit_pages = 10;
  world.b.state.cache.device_hit_pages = 5;
  world.b.model.context_length = 32;
  const EngineStatus status = world.router.status();
  REQUIRE(status.running == 5);
  REQUIRE(status.total_pages == 200);
  REQUIRE(status.page_size == 4);
  REQUIRE(status.cache.device_hit_pages == 15);
  REQUIRE(world.router.model_info().context_length == 32);
  REQUIRE(world.router.model_info().kv_token_capacity == 800);
  // Their requests add up at the lengths that both report. A ring that is away reports none.
  world.a.model.concurrency = {{16, 5}, {64, 2, ConcurrencyLimit::kTokens}};
  REQUIRE(world.router.model_info().concurrency == world.a.model.concurrency);
  world.b.model.concurrency = {{16, 4, ConcurrencyLimit::kStates}, {32, 3}};
  REQUIRE(world.router.model_info().concurrency == std::vector<Concurrency>{{16, 9, ConcurrencyLimit::kStates}});
}
