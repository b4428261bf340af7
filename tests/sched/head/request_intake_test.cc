#include "sched/head/request_intake.h"

#include <catch2/catch.hpp>

#include "async/task_group.h"
#include "async/virtual_runtime.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

GenerateRequest request_named(std::string id) {
  GenerateRequest request;
  request.id = std::move(id);
  request.prompt = {1, 2};
  request.max_tokens = 4;
  return request;
}

asio::awaitable<void> take_controls(RequestIntake& intake, std::vector<Control>& taken) {
  for (;;) {
    auto control = co_await intake.next();
    if (!control) co_return;
    if (std::holds_alternative<Submission>(*control)) intake.submission_taken();
    taken.push_back(std::move(*control));
  }
}

asio::awaitable<void> read_event(TokenStream& stream, GenerateEvent& event) {
  event = co_await stream.next();
}

/// An intake, and a head that does nothing but take its controls.
struct World {
  explicit World(size_t max_untaken) : intake(runtime, max_untaken, true) {
    intake.set_ready(true, "");
    tasks.spawn("controls", take_controls(intake, controls));
  }
  ~World() {
    intake.close();
    virtual_world.run();
  }
  async::VirtualWorld virtual_world{1};
  async::Runtime& runtime = virtual_world.add_thread();
  RequestIntake intake;
  async::TaskGroup tasks{runtime};
  std::vector<Control> controls;
};

}  // namespace

TEST_CASE("an intake that is not ready refuses with the reason") {
  World world(4);
  world.intake.set_ready(false, "the stages are being timed");
  const auto refused = world.intake.submit(request_named("a"), world.runtime);
  REQUIRE(refused.error().code == ErrorCode::kUnavailable);
  REQUIRE_THAT(refused.error().message, Catch::EndsWith("the stages are being timed"));
  REQUIRE(world.intake.status().reason == "the stages are being timed");
}

TEST_CASE("submissions that the head has not taken are bounded") {
  World world(2);
  world.intake.publish({.waiting = 1, .page_size = 64});
  const auto first = world.intake.submit(request_named("a"), world.runtime);
  const auto second = world.intake.submit(request_named("b"), world.runtime);
  REQUIRE((first.has_value() && second.has_value()));
  REQUIRE(world.intake.status().waiting == 3);
  const auto third = world.intake.submit(request_named("c"), world.runtime);
  REQUIRE(third.error().code == ErrorCode::kExhausted);
  REQUIRE_THAT(third.error().message, test::Mentions("2 requests"));
  world.virtual_world.run();
  REQUIRE(world.controls.size() == 2);
  REQUIRE(world.intake.status().waiting == 1);  // the head has them, and has not published since
  REQUIRE(world.intake.status().ready);         // publish() leaves that to set_ready()
  REQUIRE(world.intake.submit(request_named("c"), world.runtime).has_value());
}

TEST_CASE("a request id is in use until its sequence is forgotten") {
  World world(8);
  auto first = world.intake.submit(request_named("a"), world.runtime).value();
  REQUIRE(world.intake.submit(request_named("a"), world.runtime).error().code == ErrorCode::kConflict);
  world.virtual_world.run();
  const SequenceId id = std::get<Submission>(world.controls.at(0)).id;
  world.intake.forget("a", SequenceId(id.value() + 100));
  REQUIRE(world.intake.abort("a"));
  world.intake.forget("a", id);
  REQUIRE_FALSE(world.intake.abort("a"));
  auto second = world.intake.submit(request_named("a"), world.runtime);
  REQUIRE(second.has_value());
  first.reset();  // does not free the id of the second request
  REQUIRE(world.intake.abort("a"));
  world.virtual_world.run();
  REQUIRE(std::get<AbortSequence>(world.controls.at(1)).id == id);
}

TEST_CASE("only a stream that is destroyed early aborts its sequence") {
  World world(8);
  auto dropped = world.intake.submit(request_named("a"), world.runtime).value();
  auto ended = world.intake.submit(request_named("b"), world.runtime).value();
  world.virtual_world.run();
  const SequenceId dropped_id = std::get<Submission>(world.controls.at(0)).id;
  GenerateEvent tokens;
  tokens.tokens = {7};
  GenerateEvent last;
  last.tokens = {8, 9};
  last.finish = FinishReason::kStop;
  const EventMailbox events = std::get<Submission>(world.controls.at(1)).events;
  REQUIRE((events.try_push(tokens) && events.try_push(last)));
  GenerateEvent read;
  world.tasks.spawn("client", read_event(*ended, read));
  world.virtual_world.run();
  REQUIRE(read.tokens == std::vector<TokenId>{7, 8, 9});  // merged while the client was busy
  REQUIRE(read.finish == FinishReason::kStop);
  ended.reset();
  dropped.reset();
  world.virtual_world.run();
  REQUIRE(world.controls.size() == 3);
  REQUIRE(std::get<AbortSequence>(world.controls.at(2)).id == dropped_id);
  REQUIRE(std::get<Submission>(world.controls.at(0)).events.closed());
}

TEST_CASE("a closed intake refuses everything and keeps no id") {
  World world(8);
  world.intake.close();
  REQUIRE(world.intake.submit(request_named("a"), world.runtime).error().code == ErrorCode::kUnavailable);
  REQUIRE_FALSE(world.intake.abort("a"));
  REQUIRE_FALSE(world.intake.push(Resume{}));
}

TEST_CASE("a stall refuses requests until it is over") {
  World world(8);
  world.intake.set_stall("node 1 is silent");
  REQUIRE_FALSE(world.intake.status().ready);
  REQUIRE(world.intake.status().reason == "node 1 is silent");
  const auto refused = world.intake.submit(request_named("a"), world.runtime);
  REQUIRE(refused.error().code == ErrorCode::kUnavailable);
  world.intake.set_ready(true, "");  // an output has come; the node is still silent
  REQUIRE_FALSE(world.intake.status().ready);
  world.intake.set_ready(false, "the ring is broken");
  REQUIRE(world.intake.status().reason == "the ring is broken");
  world.intake.set_ready(true, "");
  world.intake.set_stall("");
  REQUIRE(world.intake.status().ready);
  REQUIRE(world.intake.submit(request_named("a"), world.runtime).has_value());
}
