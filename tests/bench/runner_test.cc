#include "load/runner.h"

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <numeric>
#include <set>

#include "async/run.h"
#include "bench/fake_server.h"
#include "load/report.h"

using namespace millrace;
using namespace millrace::load;
using namespace std::chrono_literals;
using test::FakeBehaviour;
using test::FakeServer;

namespace {

struct Outcome {
  RunResult result;
  Summary summary;
  std::vector<std::string> bodies;
  std::vector<std::string> paths;
  uint32_t connection_count = 0;
  uint32_t max_running = 0;
};

Options small_options() {
  Options options;
  options.num_prompts = 20;
  options.input_len = 5;
  options.output_len = 9;
  options.timeout_s = 60;
  options.quiet = true;
  return options;
}

asio::awaitable<void> interrupt(async::Runtime& runtime, const FakeServer& server, size_t after, Runner& runner) {
  while (server.request_count < after) co_await async::sleep_for(runtime, 1ms);
  runner.interrupt();
}

/// `interrupt_after`: once the server has had so many requests; 0: never.
asio::awaitable<void> drive(async::Runtime& runtime, Options options, FakeBehaviour behaviour, size_t interrupt_after,
                            Outcome& outcome) {
  FakeServer server(runtime, behaviour);
  options.target = server.target();
  Runner runner(runtime, options);
  async::TaskGroup tasks(runtime);
  if (interrupt_after > 0) tasks.spawn("interrupt", interrupt(runtime, server, interrupt_after, runner));
  outcome.result = co_await runner.run();
  tasks.cancel();
  co_await tasks.join();
  co_await server.stop();
  outcome.summary = summarize(outcome.result, options);
  outcome.bodies = server.bodies;
  outcome.paths = server.paths;
  outcome.connection_count = server.connection_count;
  outcome.max_running = server.max_running;
}

Outcome run(const Options& options, const FakeBehaviour& behaviour, size_t interrupt_after = 0) {
  asio::io_context context(1);
  async::RealRuntime runtime(context);
  Outcome outcome;
  test::run_to_end(context, drive(runtime, options, behaviour, interrupt_after, outcome));
  return outcome;
}

}  // namespace

TEST_CASE("every request is sent once and counted by reported usage") {
  const Outcome outcome = run(small_options(), {.chunk_count = 5});
  REQUIRE_FALSE(outcome.result.failure);
  REQUIRE(outcome.result.model == "fake");
  REQUIRE(outcome.summary.completed == 20);
  REQUIRE(outcome.summary.failed == 0);
  REQUIRE(outcome.summary.total_input_tokens == 20 * 7);
  REQUIRE(outcome.summary.total_output_tokens == 20 * 9);
  REQUIRE(outcome.summary.counted_by_chunks == 0);
  REQUIRE(std::set(outcome.bodies.begin(), outcome.bodies.end()).size() == 20);
  for (const RequestRecord& record : outcome.result.records) {
    REQUIRE(record.gaps.size() == 4);
    REQUIRE(record.latency == std::accumulate(record.gaps.begin(), record.gaps.end(), record.ttft));
  }
}

TEST_CASE("chat requests go to the chat endpoint") {
  Options options = small_options();
  options.endpoint = Endpoint::kChat;
  options.text = true;
  const Outcome outcome = run(options, {});
  REQUIRE(outcome.summary.completed == 20);
  REQUIRE(outcome.paths == std::vector<std::string>(20, "/v1/chat/completions"));
}

TEST_CASE("a conversation goes on turn by turn with the replies") {
  Options options = small_options();
  options.dataset = Dataset::kMultiTurn;
  options.text = true;
  options.num_prompts = 12;
  options.turn_count = 4;
  const Outcome outcome = run(options, {.chunk_count = 2, .before_first = 2ms});
  REQUIRE(outcome.summary.completed == 12);
  REQUIRE(outcome.max_running == 3);
  for (size_t i = 0; i < 12; ++i) {
    size_t replies = 0;
    for (size_t at = 0; (at = outcome.bodies[i].find(R"(a\na\n)", at)) != std::string::npos; ++at) ++replies;
    REQUIRE(replies == i / 3);
  }
}

TEST_CASE("chunks and sent ids are counted where usage is missing") {
  const Outcome outcome = run(small_options(), {.chunk_count = 3, .usage = false});
  REQUIRE(outcome.summary.completed == 20);
  REQUIRE(outcome.summary.counted_by_chunks == 20);
  REQUIRE(outcome.summary.total_output_tokens == 20 * 3);
  REQUIRE(outcome.summary.total_input_tokens == 20 * 5);
}

TEST_CASE("chunks that name the role or the end alone are no tokens") {
  Options options = small_options();
  options.num_prompts = 3;
  const Outcome outcome =
      run(options, {.chunk_count = 3, .role = true, .finish = true, .before_first = 40ms, .usage = false});
  REQUIRE(outcome.summary.completed == 3);
  REQUIRE(outcome.summary.total_output_tokens == 3 * 3);
  for (const RequestRecord& record : outcome.result.records) {
    REQUIRE(record.gaps.size() == 2);
    REQUIRE(record.ttft >= 39ms);
    REQUIRE(record.latency >= std::accumulate(record.gaps.begin(), record.gaps.end(), record.ttft));
  }
  // An answer without any text, as one special token is, has come when it ends.
  const Outcome none = run(options, {.chunk_count = 0, .role = true, .finish = true});
  REQUIRE(none.summary.completed == 3);
  for (const RequestRecord& record : none.result.records) REQUIRE(record.ttft == record.latency);
}

TEST_CASE("the concurrency limit holds and connections are kept") {
  Options options = small_options();
  options.num_prompts = 60;
  options.max_concurrency = 4;
  const Outcome outcome = run(options, {.between = 1ms});
  REQUIRE(outcome.summary.completed == 60);
  REQUIRE(outcome.max_running == 4);
  REQUIRE(outcome.result.max_running == 4);
  REQUIRE(outcome.connection_count == 4);
}

TEST_CASE("concurrency ramps up") {
  Options options = small_options();
  options.num_prompts = 8;
  options.max_concurrency = 4;
  options.ramp_up_s = 0.2;
  const Outcome outcome = run(options, {.chunk_count = 2, .between = 500ms});
  const auto& records = outcome.result.records;
  REQUIRE(outcome.summary.completed == 8);
  for (size_t i = 0; i < 4; ++i) REQUIRE(records[i].sent_at - outcome.result.start >= 50ms * i);
}

TEST_CASE("arrivals keep their times whatever the server does") {
  Options options = small_options();
  options.num_prompts = 10;
  options.request_rate = 100;
  options.burstiness = 1e6;
  const Outcome outcome = run(options, {.before_first = 300ms});
  const auto& records = outcome.result.records;
  REQUIRE(outcome.summary.completed == 10);
  for (size_t i = 0; i < 10; ++i) REQUIRE(records[i].sent_at - outcome.result.start >= 9ms * i);
  for (const RequestRecord& record : records) REQUIRE(record.ttft >= 299ms);
}

TEST_CASE("a request held up by a concurrency limit was due before") {
  Options options = small_options();
  options.num_prompts = 4;
  options.request_rate = 1000;
  options.burstiness = 1e6;
  options.max_concurrency = 1;
  const Outcome outcome = run(options, {.before_first = 30ms});
  const auto& records = outcome.result.records;
  for (size_t i = 0; i < 4; ++i) {
    REQUIRE(records[i].due_at - outcome.result.start >= 900us * i);
    REQUIRE(records[i].sent_at - records[i].due_at >= 29ms * i - 2ms * i);
  }
  REQUIRE(outcome.summary.late.percentiles[0] >= 3 * 27);
}

TEST_CASE("a turn of a conversation is due when the last is answered") {
  Options options = small_options();
  options.dataset = Dataset::kMultiTurn;
  options.text = true;
  options.num_prompts = 4;
  options.turn_count = 4;
  options.request_rate = 1000;
  const Outcome outcome = run(options, {.before_first = 20ms});
  const auto& records = outcome.result.records;
  for (size_t i = 1; i < 4; ++i) {
    REQUIRE(records[i].due_at == records[i - 1].sent_at + records[i - 1].latency);
    REQUIRE(records[i].sent_at >= records[i].due_at);
  }
}

TEST_CASE("warm-ups are sent before and not counted") {
  Options options = small_options();
  options.warmups = 5;
  const Outcome outcome = run(options, {});
  REQUIRE(outcome.summary.completed == 20);
  REQUIRE(outcome.bodies.size() == 25);
}

TEST_CASE("a warm-up that fails ends the run with its reason") {
  Options options = small_options();
  options.warmups = 2;
  const Outcome outcome = run(options, {.status = 400});
  REQUIRE(outcome.result.failure.message == "warm-up: 400: no room");
}

TEST_CASE("failures are counted by kind and keep their message") {
  Options options = small_options();
  options.num_prompts = 9;
  options.max_concurrency = 1;

  const Outcome status = run(options, {.fail_every = 3});
  REQUIRE(status.summary.completed == 6);
  REQUIRE(status.summary.failures.at("HTTP status").messages[0] == "503: no room");

  const Outcome event = run(options, {.error_after = 2});
  REQUIRE(event.summary.failed == 9);
  REQUIRE(event.summary.failures.at("error in the stream").messages[0] == "stage 2 is gone");

  const Outcome cut = run(options, {.cut_after = 2});
  REQUIRE(cut.summary.failures.at("connection lost").count == 9);

  const Outcome open_end = run(options, {.done = false});
  REQUIRE(open_end.summary.failures.at("connection lost").messages[0] == "the stream ends without [DONE]");

  const Outcome empty = run(options, {.chunk_count = 0});
  REQUIRE(empty.summary.failures.at("bad data").count == 9);

  options.timeout_s = 0.05;
  options.num_prompts = 2;
  const Outcome late = run(options, {.before_first = 5s});
  REQUIRE(late.summary.failures.at("timeout").count == 2);
}

TEST_CASE("a connection that the server closed while idle is replaced") {
  Options options = small_options();
  options.max_concurrency = 2;
  const Outcome outcome = run(options, {.keep_alive = false});
  REQUIRE(outcome.summary.completed == 20);
  REQUIRE(outcome.connection_count >= 20);
}

TEST_CASE("a reply in pieces of any size is read") {
  Options options = small_options();
  options.num_prompts = 3;
  for (const size_t piece_bytes : {1, 2, 7, 64}) {
    const Outcome outcome = run(options, {.piece_bytes = piece_bytes});
    REQUIRE(outcome.summary.completed == 3);
    REQUIRE(outcome.summary.total_output_tokens == 27);
  }
}

TEST_CASE("nobody listening is one clear failure") {
  asio::io_context context(1);
  async::RealRuntime runtime(context);
  asio::ip::tcp::acceptor taken(context, {asio::ip::address_v4::loopback(), 0});
  Options options = small_options();
  options.target = {.host = "127.0.0.1", .port = std::to_string(taken.local_endpoint().port()), .prefix = ""};
  taken.close();
  const auto script = [](async::Runtime& rt, const Options& with, RunResult& result) -> asio::awaitable<void> {
    Runner runner(rt, with);
    result = co_await runner.run();
  };
  RunResult result;
  test::run_to_end(context, script(runtime, options, result));
  REQUIRE(result.failure.kind == FailureKind::kConnect);
  REQUIRE(result.failure.message == "cannot connect to 127.0.0.1:" + options.target.port + ": Connection refused");
}

TEST_CASE("an interrupted run keeps what it has") {
  Options options = small_options();
  options.num_prompts = 1000;
  options.max_concurrency = 2;
  const Outcome outcome = run(options, {.between = 5ms}, 10);
  REQUIRE(outcome.result.interrupted);
  REQUIRE(outcome.summary.completed > 0);
  REQUIRE(outcome.summary.failed == 0);
  REQUIRE(outcome.summary.completed + outcome.summary.unsent == 1000);
}

TEST_CASE("a run interrupted before its measurement ends and says so") {
  const Outcome outcome = run(small_options(), {.silent = true}, 1);
  REQUIRE(outcome.result.interrupted);
  REQUIRE(outcome.result.failure.kind == FailureKind::kCancelled);
  REQUIRE(outcome.result.failure.message == "interrupted before the measurement began");
  Options options = small_options();
  options.warmups = 40;
  options.max_concurrency = 2;
  const Outcome warming = run(options, {.between = 50ms}, 3);  // the first asks for the models
  REQUIRE(warming.result.failure.kind == FailureKind::kCancelled);
  REQUIRE(warming.bodies.size() < 40);
}
