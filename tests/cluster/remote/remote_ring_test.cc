#include <boost/asio/post.hpp>
#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "async/real_runtime.h"
#include "async/task_group.h"
#include "cluster/remote/remote_engine.h"
#include "cluster/remote/ring_listener.h"
#include "cluster/remote/ring_server.h"
#include "sched/router/scripted_ring.h"
#include "support/captured_log.h"
#include "support/fake_ring_view.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::cluster::remote;
using namespace std::chrono_literals;
using test::ScriptedRing;

namespace {

const RingFacts kFacts{.config = {1, 2}, .vocabulary = {3, 4}, .arithmetic = "bf16", .experts = {}, .page_size = 4};

/// Runs `work` on a thread and waits for it.
template <class Work>
auto on(async::IoThread& thread, Work work) {
  std::packaged_task<decltype(work())()> task(std::move(work));
  auto done = task.get_future();
  asio::post(thread.context(), [&task] { task(); });
  return done.get();
}

template <class Condition>
void wait_for(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + 60s;
  while (!condition()) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    std::this_thread::sleep_for(1ms);
  }
}

/// A host that compiles nothing, and fails where the source says so.
class FakeHost final : public RingHost {
 public:
  asio::awaitable<Result<std::shared_ptr<const grammar::Grammar>>> compile(
      std::shared_ptr<const std::string> source) override {
    sources.push_back(*source);
    Result<std::shared_ptr<const grammar::Grammar>> result(nullptr);
    if (*source == "bad") result = Error{ErrorCode::kInvalidArgument, "a bad source"};
    co_return result;
  }
  std::shared_ptr<const grammar::Vocabulary> tag_vocabulary() override { return nullptr; }
  RingMetrics metrics() override { return {"node_metric 2\n"}; }

  std::vector<std::string> sources;
};

/// A front with the engine of ring 1, and its listener.
struct Front {
  explicit Front(sched::StepGroup* steps = nullptr) : listener(thread.runtime(), {&engine}, {}, steps) {
    REQUIRE_FALSE(listener.listen({.host = "127.0.0.1", .port = 0}, {}).has_error());
    asio::post(thread.context(), [this] { tasks.spawn("rings", listener.serve(kFacts)); });
  }
  ~Front() {
    asio::post(thread.context(), [this] { listener.stop(); });
    thread.join();
  }
  ScriptedRing like;
  async::IoThread thread{"rings"};
  async::TaskGroup tasks{thread.runtime()};
  RemoteEngine engine{thread.runtime(), 1, like, "here"};
  RingListener listener;
};

/// A ring in another process: its engine's script, and the server that joins a front. All of it is used on its thread.
struct Ring {
  explicit Ring(uint16_t port, RingFacts facts = kFacts, uint32_t number = 1, sched::RemoteStepGroup* steps = nullptr)
      : server(thread.runtime(),
               {.front = {.host = "127.0.0.1", .port = port},
                .hello = {number, std::move(facts)},
                .timing = {},
                .steps = steps,
                .quiet_steps = 30ms},
               engine, host) {
    engine.model.architecture = "LlamaForCausalLM";
    asio::post(thread.context(), [this] { tasks.spawn("server", server.run()); });
  }
  ~Ring() {
    // The script ends requests as a head does that is stopped.
    asio::post(thread.context(), [this] { server.stop(); });
    thread.join();
  }
  /// Returns request `index`, once it is here.
  ScriptedRing::Submitted& request(size_t index) {
    wait_for([&] { return on(thread, [&] { return engine.requests.size() > index; }); });
    return *on(thread, [&] { return engine.requests[index]; });
  }
  ScriptedRing engine;
  FakeHost host;
  async::IoThread thread{"front link"};
  async::TaskGroup tasks{thread.runtime()};
  RingServer server;
};

/// A client with a thread of its own.
class Client {
 public:
  ~Client() { thread_.join(); }
  Result<std::unique_ptr<sched::TokenStream>> submit(RemoteEngine& engine, sched::GenerateRequest request) {
    return engine.submit(std::move(request), thread_.runtime());
  }
  sched::GenerateEvent next(sched::TokenStream& stream) {
    std::promise<sched::GenerateEvent> event;
    asio::post(thread_.context(), [&] { tasks_.spawn("next", read(stream, event)); });
    return event.get_future().get();
  }
  Result<void> flush(RemoteEngine& engine) {
    std::promise<Result<void>> result;
    asio::post(thread_.context(), [&] { tasks_.spawn("flush", flush_into(engine, result)); });
    return result.get_future().get();
  }

 private:
  static asio::awaitable<void> read(sched::TokenStream& stream, std::promise<sched::GenerateEvent>& to) {
    sched::GenerateEvent event = co_await stream.next();
    to.set_value(std::move(event));
  }
  asio::awaitable<void> flush_into(RemoteEngine& engine, std::promise<Result<void>>& to) {
    const Result<void> result = co_await engine.flush_cache(thread_.runtime(), 7s);
    to.set_value(result);
  }
  async::IoThread thread_{"client"};
  async::TaskGroup tasks_{thread_.runtime()};
};

sched::GenerateRequest request_of(const std::string& id, std::optional<uint32_t> ring = {}) {
  sched::GenerateRequest request;
  request.id = id;
  request.prompt = {1, 2, 3};
  request.ring = ring;
  return request;
}

void wait_until_ready(const Front& front) {
  wait_for([&] { return front.engine.status().ready; });
}

}  // namespace

TEST_CASE("a request runs on a ring of another process") {
  Front front;
  Client client;
  REQUIRE_FALSE(front.engine.status().ready);
  REQUIRE(client.submit(front.engine, request_of("a")).error().code == ErrorCode::kUnavailable);
  REQUIRE(front.engine.model_info().kv_token_capacity == 0);
  Ring ring(front.listener.port());
  wait_until_ready(front);
  REQUIRE(front.engine.model_info().kv_token_capacity == 400);
  REQUIRE(front.engine.status().total_pages == 100);
  wait_for([&] { return front.engine.node_metrics() == "node_metric 2\n"; });
  REQUIRE(front.engine.arithmetic() == "bf16");

  auto request = request_of("a");
  request.grammar_source = std::make_shared<const std::string>("source");
  const auto stream = client.submit(front.engine, request).value();
  REQUIRE(client.submit(front.engine, request_of("a")).error().code == ErrorCode::kConflict);
  auto& submitted = ring.request(0);
  REQUIRE(ring.host.sources == std::vector<std::string>{"source"});
  REQUIRE(submitted.request.prompt == request.prompt);
  REQUIRE(submitted.request.reports_start);
  REQUIRE(front.engine.status().waiting == 1);
  on(ring.thread, [&] { ring.engine.push(submitted, {}); });
  wait_for([&] { return front.engine.status().running == 1; });
  on(ring.thread, [&] { ring.engine.push_tokens(submitted, {7, 8}); });
  REQUIRE(client.next(*stream).tokens == std::vector<TokenId>{7, 8});
  on(ring.thread, [&] { ring.engine.finish(submitted); });
  REQUIRE(client.next(*stream).finish == sched::FinishReason::kStop);
  REQUIRE(front.engine.status().running == 0);
  REQUIRE_FALSE(front.engine.abort("a"));
}

TEST_CASE("aborts and departures reach a ring of another process") {
  Front front;
  Client client;
  Ring ring(front.listener.port());
  wait_until_ready(front);
  const auto stream = client.submit(front.engine, request_of("a")).value();
  auto& first = ring.request(0);
  REQUIRE(front.engine.abort("a"));
  REQUIRE(client.next(*stream).finish == sched::FinishReason::kAbort);
  REQUIRE(first.is_over);
  auto left = client.submit(front.engine, request_of("b")).value();
  (void)ring.request(1);
  left.reset();
  REQUIRE(front.engine.status().waiting == 0);
  wait_for([&] { return on(ring.thread, [&] { return ring.engine.requests[1]->is_over; }); });
}

TEST_CASE("what a ring refuses is the only event of the stream") {
  Front front;
  Client client;
  Ring ring(front.listener.port());
  wait_until_ready(front);
  auto request = request_of("a");
  request.grammar_source = std::make_shared<const std::string>("bad");
  const auto uncompiled = client.submit(front.engine, request).value();
  REQUIRE(client.next(*uncompiled).error->code == ErrorCode::kInvalidArgument);
  for (const ErrorCode code : {ErrorCode::kExhausted, ErrorCode::kUnavailable}) {
    on(ring.thread, [&] { ring.engine.refusal = Error{code, "refused"}; });
    for (const bool is_pinned : {false, true}) {
      const auto pin = is_pinned ? std::optional<uint32_t>(1) : std::nullopt;
      const auto stream = client.submit(front.engine, request_of("b", pin)).value();
      const sched::GenerateEvent event = client.next(*stream);
      REQUIRE(event.error->code == code);
      // What a broken ring refuses may run on another one.
      REQUIRE(event.is_returned == (code == ErrorCode::kUnavailable && !is_pinned));
    }
  }
}

TEST_CASE("controls reach a ring of another process") {
  Front front;
  Client client;
  Ring ring(front.listener.port());
  wait_until_ready(front);
  REQUIRE(front.engine.pause(sched::PauseMode::kInPlace));
  wait_for([&] { return front.engine.status().paused; });
  REQUIRE(front.engine.resume());
  wait_for([&] { return !front.engine.status().paused; });
  REQUIRE(front.engine.rebuild("a restart"));
  wait_for([&] { return on(ring.thread, [&] { return !ring.engine.rebuilds.empty(); }); });
  REQUIRE(ring.engine.rebuilds == std::vector<std::string>{"a restart"});
  REQUIRE(client.flush(front.engine).has_value());
  REQUIRE(ring.engine.flush_timeouts == std::vector<async::Duration>{7s});
  on(ring.thread, [&] { ring.engine.flush_result = Error{ErrorCode::kConflict, "busy"}; });
  REQUIRE(client.flush(front.engine).error().code == ErrorCode::kConflict);
  const auto stream = client.submit(front.engine, request_of("a")).value();
  (void)ring.request(0);
  REQUIRE(front.engine.return_waiting("draining"));
  REQUIRE(client.next(*stream).is_returned);
  on(ring.thread, [&] { ring.engine.break_down("stage 0: gone"); });
  wait_for([&] { return !front.engine.status().ready; });
  REQUIRE(front.engine.status().reason == "stage 0: gone");
  REQUIRE(client.submit(front.engine, request_of("b")).error().code == ErrorCode::kUnavailable);
}

TEST_CASE("statistics of a ring of another process arrive") {
  Front front;
  auto ring = std::make_unique<Ring>(front.listener.port());
  wait_until_ready(front);
  REQUIRE(front.engine.ring_stats() == nullptr);
  const auto stats = std::make_shared<test::FakeRingView>(2, 2);
  stats->record_plans(600);
  on(ring->thread, [&] { ring->engine.stats = stats; });
  wait_for([&] { return front.engine.ring_stats() != nullptr; });
  const auto view = front.engine.ring_stats();
  REQUIRE(view->stage_count() == 2);
  REQUIRE(view->rank_count() == 2);
  REQUIRE(view->window() == 2);
  REQUIRE(view->began_ns() != 0);
  REQUIRE(view->snapshot(0).since_start.plans == 600);
  REQUIRE(view->costs().stages.empty());
  REQUIRE(view->records_after(0).front().number == 89);  // a connection begins with the newest 512
  REQUIRE(view->records_after(598).size() == 2);
  REQUIRE(view->records_after(0, 3).front().number == 598);
  REQUIRE(view->records_after(600).empty());

  const int64_t as_of_ns = view->as_of_ns(0);
  stats->record_plans(5000);
  stats->set_costs({.stages = {{.fixed_us = 1}, {.fixed_us = 2}}});
  wait_for([&] { return view->snapshot(0).since_start.plans == 5600; });
  REQUIRE(view->as_of_ns(0) > as_of_ns);
  REQUIRE(view->costs().stages[1].fixed_us == 2);
  const auto records = view->records_after(0);
  REQUIRE(records.size() == sched::RingView::kMaxRecords);
  REQUIRE(records.back().number == 5600);

  // A ring that is gone has no statistics, and those who read them keep what they had.
  ring.reset();
  wait_for([&] { return !front.engine.status().ready; });
  REQUIRE(front.engine.ring_stats() == nullptr);
  REQUIRE(view->records_after(5599).size() == 1);
}

TEST_CASE("a ring whose statistics change their shape is cut off") {
  Front front;
  Ring ring(front.listener.port());
  on(ring.thread, [&] { ring.engine.stats = std::make_shared<test::FakeRingView>(2); });
  wait_for([&] { return front.engine.ring_stats() != nullptr; });
  const auto view = front.engine.ring_stats();
  on(ring.thread, [&] { ring.engine.stats = std::make_shared<test::FakeRingView>(3); });
  wait_for([&] { return front.engine.ring_stats() != view; });
  REQUIRE(view->stage_count() == 2);
  wait_for([&] { return front.engine.ring_stats() != nullptr; });  // it joins again, as a new ring
  REQUIRE(front.engine.ring_stats()->stage_count() == 3);
}

TEST_CASE("a lost ring fails what it has begun and returns the rest") {
  Front front;
  Client client;
  auto ring = std::make_unique<Ring>(front.listener.port());
  wait_until_ready(front);
  const auto begun = client.submit(front.engine, request_of("begun")).value();
  const auto waiting = client.submit(front.engine, request_of("waiting")).value();
  const auto pinned = client.submit(front.engine, request_of("pinned", 1)).value();
  (void)ring->request(2);
  on(ring->thread, [&] { ring->engine.push(*ring->engine.requests[0], {}); });
  wait_for([&] { return front.engine.status().running == 1; });
  ring.reset();
  for (const auto& [stream, is_returned] : {std::pair(&begun, false), {&waiting, true}, {&pinned, false}}) {
    const sched::GenerateEvent event = client.next(**stream);
    REQUIRE(event.error->code == ErrorCode::kUnavailable);
    REQUIRE_THAT(event.error->message, test::Mentions("ring 1", "stopping"));
    REQUIRE(event.is_returned == is_returned);
  }
  wait_for([&] { return !front.engine.status().ready; });
  REQUIRE(client.flush(front.engine).error().code == ErrorCode::kUnavailable);
  REQUIRE_FALSE(front.engine.pause(sched::PauseMode::kAbort));
  REQUIRE(front.engine.node_metrics().empty());
  // Another process takes its number.
  Ring next(front.listener.port());
  wait_until_ready(front);
  const auto stream = client.submit(front.engine, request_of("begun")).value();
  auto& submitted = next.request(0);
  on(next.thread, [&] { next.engine.finish(submitted); });
  REQUIRE(client.next(*stream).finish == sched::FinishReason::kStop);
}

TEST_CASE("a ring aborts the requests of a front that is gone") {
  auto front = std::make_unique<Front>();
  auto client = std::make_unique<Client>();
  Ring ring(front->listener.port());
  wait_until_ready(*front);
  auto stream = client->submit(front->engine, request_of("a")).value();
  auto& submitted = ring.request(0);
  asio::post(front->thread.context(), [&] { front->listener.stop(); });
  wait_for([&] { return on(ring.thread, [&] { return submitted.is_over; }); });
  REQUIRE(client->next(*stream).is_returned);
  stream.reset();
}

TEST_CASE("a draining ring ends what it has and gives the rest back") {
  Front front;
  Client client;
  Ring ring(front.listener.port());
  wait_until_ready(front);
  const auto running = client.submit(front.engine, request_of("running")).value();
  auto& submitted = ring.request(0);
  on(ring.thread, [&] { ring.engine.push_tokens(submitted, {5}); });
  REQUIRE(client.next(*running).tokens == std::vector<TokenId>{5});
  const auto waiting = client.submit(front.engine, request_of("waiting")).value();
  (void)ring.request(1);
  on(ring.thread, [&] { ring.tasks.spawn("drain", ring.server.drain(60s)); });
  REQUIRE(client.next(*waiting).is_returned);
  wait_for([&] { return !front.engine.status().ready; });
  on(ring.thread, [&] { ring.engine.finish(submitted); });
  REQUIRE(client.next(*running).finish == sched::FinishReason::kStop);
}

TEST_CASE("a ring that differs or comes twice is refused") {
  Front front;
  RingFacts other = kFacts;
  other.arithmetic = "f32";
  const Ring different(front.listener.port(), other);
  const Ring misplaced(front.listener.port(), kFacts, 2);
  std::this_thread::sleep_for(300ms);
  REQUIRE_FALSE(front.engine.status().ready);
  const Ring first(front.listener.port());
  wait_until_ready(front);
  const Ring second(front.listener.port());
  std::this_thread::sleep_for(300ms);
  REQUIRE(front.engine.status().ready);
  REQUIRE(front.engine.arithmetic() == "bf16");
}

namespace {

/// A head that steps with others.
class SteppingHead {
 public:
  ~SteppingHead() { thread_.join(); }
  void join(sched::StepEpochs& epochs, uint32_t ring) {
    asio::post(thread_.context(), [&, ring] { tasks_.spawn("join", join_epoch(epochs, ring)); });
  }
  [[nodiscard]] bool has_joined() {
    return on(thread_, [&] { return membership_.board != nullptr; });
  }
  [[nodiscard]] const sched::StepEpochs::Membership& membership() const { return membership_; }
  void start_step(uint64_t step) {
    on(thread_, [&] { membership_.board->start_step(step); });
  }
  /// Waits for the end of the epoch. Returns the reason.
  std::string end() {
    std::promise<std::string> reason;
    asio::post(thread_.context(), [&] { tasks_.spawn("end", wait_for_end(reason)); });
    return reason.get_future().get();
  }

 private:
  asio::awaitable<void> join_epoch(sched::StepEpochs& epochs, uint32_t ring) {
    membership_ = co_await epochs.join(
        ring, thread_.runtime(),
        {.endpoints = {{.host = "", .port = static_cast<uint16_t>(7 + ring)}, {.host = "10.0.0.9", .port = 1}},
         .contents = {1, 2, 3, ring}});
  }
  asio::awaitable<void> wait_for_end(std::promise<std::string>& to) {
    std::string reason;
    try {
      co_await membership_.board->wait_beyond(1'000'000);
    } catch (const ErrorException& ended) {
      reason = ended.what();
    }
    membership_.board = nullptr;
    to.set_value(reason);
  }
  sched::StepEpochs::Membership membership_;
  async::IoThread thread_{"head"};
  async::TaskGroup tasks_{thread_.runtime()};
};

}  // namespace

TEST_CASE("rings of two processes step together until one is lost") {
  sched::StepGroup group(2, 24, {}, 40);
  sched::RemoteStepGroup elsewhere(1, 2, {});
  SteppingHead first;
  SteppingHead second;
  const Front front(&group);
  for (const uint64_t epoch : {41, 42}) {
    auto ring = std::make_unique<Ring>(front.listener.port(), kFacts, 1, &elsewhere);
    first.join(group, 0);
    second.join(elsewhere, 1);
    wait_for([&] { return first.has_joined() && second.has_joined(); });
    REQUIRE(first.membership().epoch == epoch);
    REQUIRE(second.membership().epoch == epoch);
    // The host of a ring's head is known by its connection, those of its other nodes by what it says.
    const comm::RingExperts first_ring{.endpoints = {{"127.0.0.1", 7}, {"10.0.0.9", 1}}, .contents = {1, 2, 3, 0}};
    const comm::RingExperts second_ring{.endpoints = {{"127.0.0.1", 8}, {"10.0.0.9", 1}}, .contents = {1, 2, 3, 1}};
    REQUIRE(first.membership().rings[1] == second_ring);
    REQUIRE(second.membership().rings == std::vector{first_ring, second_ring});
    first.start_step(1);
    wait_for([&] { return second.membership().board->target() == 25; });
    second.start_step(26);
    wait_for([&] { return first.membership().board->target() == 50 && second.membership().board->target() == 50; });
    ring.reset();
    REQUIRE_THAT(first.end(), test::Mentions("ring 1: gone: "));
    REQUIRE(second.end() == "its node is stopping");
    group.leave(0);
    elsewhere.leave(1);
  }
}

TEST_CASE("a draining ring steps along while others need its experts") {
  const test::CapturedLog log;
  sched::StepGroup group(2, 24, {}, 40);
  sched::RemoteStepGroup elsewhere(1, 2, {});
  const Front front(&group);
  const auto view = std::make_shared<test::FakeRingView>(1);
  Ring ring(front.listener.port(), kFacts, 1, &elsewhere);
  on(ring.thread, [&] { ring.engine.stats = view; });
  wait_until_ready(front);
  SteppingHead first;
  SteppingHead second;
  first.join(group, 0);
  second.join(elsewhere, 1);
  wait_for([&] { return first.has_joined() && second.has_joined(); });
  view->set_steps(1, true);
  std::atomic<bool> has_left = false;
  const auto drain = [&]() -> asio::awaitable<void> {
    co_await ring.server.drain(3600s);
    has_left = true;
  };
  on(ring.thread, [&] { ring.tasks.spawn("drain", drain()); });
  wait_for([&] { return !front.engine.status().ready; });
  // A step goes on.
  wait_for([&] { return log.count("stepping along") > 0; });
  const bool left_early = has_left;
  REQUIRE_FALSE(left_early);
  view->set_steps(1, false);
  wait_for([&] { return has_left.load(); });
  REQUIRE_THAT(first.end(), test::Mentions("ring 1: "));
  group.leave(0);
  elsewhere.leave(1);
}
