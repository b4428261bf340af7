#include "comm/in_process_link.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <thread>

#include "async/run.h"
#include "async/task_group.h"
#include "base/result.h"

using namespace millrace;
using namespace millrace::comm;
using namespace std::chrono_literals;

namespace {

std::vector<std::byte> bytes_of(std::string_view text) {
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::string text_of(const Message& message) {
  const auto bytes = message.payload.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

asio::awaitable<std::string> failure_of(LinkReceiver& receiver, MessageKind kind) {
  std::string reason;
  try {
    (void)co_await receiver.receive(kind);
  } catch (const ErrorException& failure) {
    reason = failure.error().message;
  }
  co_return reason;
}

asio::awaitable<void> keep_failure(LinkReceiver& receiver, std::string& reason) {
  reason = co_await failure_of(receiver, MessageKind::kPlan);
}

}  // namespace

TEST_CASE("kinds keep their own order and an early kind waits") {
  asio::io_context context(1);
  async::RealRuntime runtime(context);
  auto script = [](async::Runtime& rt) -> asio::awaitable<void> {
    Link link = make_in_process_link(rt, rt, 8);
    link.sender->send(MessageKind::kActivations, RingEpoch(1), PlanId(1), bytes_of("early"));
    link.sender->send(MessageKind::kPlan, RingEpoch(1), PlanId(1), bytes_of("one"));
    link.sender->send(MessageKind::kPlan, RingEpoch(1), PlanId(2), bytes_of("two"));
    const Message one = co_await link.receiver->receive(MessageKind::kPlan);
    const Message two = co_await link.receiver->receive(MessageKind::kPlan);
    const Message early = co_await link.receiver->receive(MessageKind::kActivations);
    REQUIRE(text_of(one) == "one");
    REQUIRE(two.plan == PlanId(2));
    REQUIRE(text_of(early) == "early");
  };
  test::run_to_end(context, script(runtime));
}

TEST_CASE("a borrowed buffer is not copied and commit awaits release") {
  asio::io_context context(1);
  async::RealRuntime runtime(context);
  auto script = [](async::Runtime& rt) -> asio::awaitable<void> {
    Link link = make_in_process_link(rt, rt, 8);
    const auto buffer = bytes_of("activations");
    Work work = link.sender->send_borrowed(MessageKind::kActivations, RingEpoch(1), PlanId(1), buffer);
    bool committed = false;
    auto commit = [](Work& what, bool& flag) -> asio::awaitable<void> {
      co_await what.commit();
      flag = true;
    };
    async::TaskGroup tasks(rt);
    tasks.spawn("commit", commit(work, committed));
    {
      std::vector<std::byte> unused(buffer.size());
      REQUIRE_FALSE(link.receiver->fills_posted());
      link.receiver->post(PlanId(1), unused);
      const Message message = co_await link.receiver->receive(MessageKind::kActivations);
      REQUIRE(message.payload.bytes().data() == buffer.data());
      REQUIRE(unused == std::vector<std::byte>(buffer.size()));
      co_await async::sleep_for(rt, 1ms);
      REQUIRE_FALSE(committed);
    }
    co_await tasks.join();
    REQUIRE(committed);
    co_await work.commit();  // nothing is under way any more
  };
  test::run_to_end(context, script(runtime));
}

TEST_CASE("a closed link delivers and then gives its reason") {
  asio::io_context context(1);
  async::RealRuntime runtime(context);
  auto script = [](async::Runtime& rt) -> asio::awaitable<void> {
    Link link = make_in_process_link(rt, rt, 8);
    link.sender->send(MessageKind::kPlan, RingEpoch(1), PlanId(1), bytes_of("last"));
    link.sender->close("the head has stopped");
    link.sender->close("a later reason does not count");
    const Message last = co_await link.receiver->receive(MessageKind::kPlan);
    REQUIRE(text_of(last) == "last");
    const std::string reason = co_await failure_of(*link.receiver, MessageKind::kPlan);
    REQUIRE(reason == "the head has stopped");

    Link other = make_in_process_link(rt, rt, 8);
    const auto buffer = bytes_of("x");
    Work work = other.sender->send_borrowed(MessageKind::kActivations, RingEpoch(1), PlanId(1), buffer);
    other.receiver->close("stage failed");
    co_await work.commit();
    Work late = other.sender->send_borrowed(MessageKind::kActivations, RingEpoch(1), PlanId(2), buffer);
    co_await late.commit();
    const std::string after = co_await failure_of(*other.receiver, MessageKind::kActivations);
    REQUIRE(after == "stage failed");
  };
  test::run_to_end(context, script(runtime));
}

TEST_CASE("more messages than the window allows break the link by name") {
  asio::io_context context(1);
  async::RealRuntime runtime(context);
  auto script = [](async::Runtime& rt) -> asio::awaitable<void> {
    Link link = make_in_process_link(rt, rt, 2);
    for (int i = 0; i < 100; ++i) link.sender->send(MessageKind::kAcks, RingEpoch(1), PlanId(0), {});
    for (uint64_t i = 0; i < 3; ++i) link.sender->send(MessageKind::kPlan, RingEpoch(1), PlanId(i), {});
    for (int i = 0; i < 100; ++i)
      REQUIRE((co_await comm::receive_until_closed(*link.receiver, MessageKind::kAcks)).has_value());
    (void)co_await link.receiver->receive(MessageKind::kPlan);
    (void)co_await link.receiver->receive(MessageKind::kPlan);
    REQUIRE_FALSE((co_await comm::receive_until_closed(*link.receiver, MessageKind::kAcks)).has_value());
    const std::string reason = co_await failure_of(*link.receiver, MessageKind::kPlan);
    REQUIRE(reason == "more plan messages wait than the window allows");
  };
  test::run_to_end(context, script(runtime));
}

TEST_CASE("a receive under way may outlive both ends of its link") {
  asio::io_context context(1);
  async::RealRuntime runtime(context);
  auto script = [](async::Runtime& rt) -> asio::awaitable<void> {
    Link link = make_in_process_link(rt, rt, 8);
    std::string reason;
    async::TaskGroup tasks(rt);
    tasks.spawn("receive", keep_failure(*link.receiver, reason));
    co_await test::settle(rt);
    link.sender.reset();
    link.receiver.reset();
    co_await tasks.join();
    REQUIRE(reason == "the sender is gone");
  };
  test::run_to_end(context, script(runtime));
}

TEST_CASE("messages cross threads in order") {
  async::IoThread sender("sender");
  asio::io_context context(1);
  async::RealRuntime runtime(context);
  constexpr uint64_t kMessages = 20000;
  Link link = make_in_process_link(sender.runtime(), runtime, kMessages);
  asio::post(sender.context(), [&] {
    for (uint64_t i = 0; i < kMessages; ++i) link.sender->send(MessageKind::kPlan, RingEpoch(1), PlanId(i), {});
  });
  auto script = [](LinkReceiver& receiver) -> asio::awaitable<void> {
    for (uint64_t i = 0; i < kMessages; ++i) {
      const Message message = co_await receiver.receive(MessageKind::kPlan);
      REQUIRE(message.plan == PlanId(i));
    }
  };
  test::run_to_end(context, script(*link.receiver));
  sender.join();
}
