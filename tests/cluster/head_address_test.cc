#include "cluster/head_address.h"

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "support/captured_log.h"
#include "support/hanging_lookup.h"

using namespace millrace;
using namespace millrace::cluster;
using namespace std::chrono_literals;

namespace {

constexpr const char* kName = "head.example";
constexpr const char* kOtherHost = "192.0.2.1";  // of no host: set aside for documents

/// Returns when the resolver has been asked so often since.
void await_lookups(const test::HangingLookup& resolver, size_t count) {
  const size_t before = resolver.count();
  while (resolver.count() < before + count) std::this_thread::sleep_for(1ms);
}

/// Returns when the log has said `what` so often.
void await_lines(const test::CapturedLog& log, const std::string& what, size_t count) {
  while (log.count(what) < count) std::this_thread::sleep_for(10ms);
}

}  // namespace

TEST_CASE("a second head or a foreign address is refused and says why") {
  asio::io_context context;
  const auto first = listen_as_head(context.get_executor(), {"127.0.0.1", 0}, {});
  const uint16_t port = (*first)->local_endpoint().port();
  const auto second = listen_as_head(context.get_executor(), {"127.0.0.1", port}, {});
  REQUIRE_THAT(second.error().message, Catch::StartsWith(fmt::format("--dist-init-addr 127.0.0.1:{}: ", port)));
  const auto misplaced = listen_as_head(context.get_executor(), {kOtherHost, port}, {});
  REQUIRE_THAT(misplaced.error().message, Catch::StartsWith(fmt::format("--dist-init-addr 192.0.2.1:{}: ", port)));
}

TEST_CASE("a head listens once its name resolves to this host") {
  test::HangingLookup resolver(kName);
  asio::io_context context;
  auto listening =
      std::async(std::launch::async, [&] { return listen_as_head(context.get_executor(), {kName, 0}, {}); });
  resolver.resolve_to("");
  await_lookups(resolver, 2);
  resolver.resolve_to(kOtherHost);
  await_lookups(resolver, 2);
  resolver.resolve_to("127.0.0.1");
  const auto found = listening.get();
  REQUIRE((*found)->local_endpoint().address().to_string() == "127.0.0.1");
}

TEST_CASE("the log says why a head is not found and how long it tries") {
  const test::CapturedLog log;
  test::HangingLookup resolver(kName);
  asio::io_context context;
  auto listening =
      std::async(std::launch::async, [&] { return listen_as_head(context.get_executor(), {kName, 1}, {}); });
  const std::string begin = "--dist-init-addr head.example:1: ";
  await_lines(log, begin + "the name 'head.example' has not been looked up yet; trying again for 5", 1);
  resolver.resolve_to("");
  const std::string unknown = begin + "the name 'head.example' cannot be looked up: ";
  await_lines(log, unknown, 2);
  resolver.resolve_to(kOtherHost);
  await_lines(log, begin + "192.0.2.1 is no address of this host; ", 1);
  resolver.resolve_to("127.0.0.1");
  REQUIRE(listening.get().has_value());
  REQUIRE(log.count(unknown) < resolver.count());
}

TEST_CASE("a head can be stopped during a lookup and between tries") {
  test::HangingLookup resolver(kName);
  asio::io_context context;
  std::stop_source stop;
  const bool answers = GENERATE(false, true);
  if (answers) resolver.resolve_to("");
  auto listening = std::async(std::launch::async,
                              [&] { return listen_as_head(context.get_executor(), {kName, 1}, stop.get_token()); });
  while (resolver.count() < (answers ? 2 : 1)) std::this_thread::sleep_for(1ms);
  stop.request_stop();
  const auto result = listening.get();
  REQUIRE(result.error().code == ErrorCode::kAborted);
  REQUIRE_THAT(result.error().message, Catch::StartsWith("--dist-init-addr head.example:1: the name 'head.example' "));
}
