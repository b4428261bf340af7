#include "async/name_lookup.h"

#include <netinet/in.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <thread>

#include "support/hanging_lookup.h"

using namespace millrace;
using namespace millrace::async;
using namespace std::chrono_literals;

namespace {

constexpr auto kPatience = 60s;
constexpr const char* kName = "head.example";

uint16_t port_of(const SocketAddress& address) {
  const auto* const v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
  const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
  return ntohs(address.get()->sa_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
}

/// Returns when the resolver has been asked `count` times.
void await_lookups(const test::HangingLookup& resolver, size_t count) {
  while (resolver.count() < count) std::this_thread::sleep_for(1ms);
}

}  // namespace

TEST_CASE("an IP address resolves to itself at once") {
  const std::string host = GENERATE(as<std::string>(), "127.0.0.1", "::1");
  const auto found = NameLookup(host, 30100).wait_for(0ms);
  REQUIRE(found.value().size() == 1);
  REQUIRE(found->front().get()->sa_family == (host == "::1" ? AF_INET6 : AF_INET));
  REQUIRE(port_of(found->front()) == 30100);
}

TEST_CASE("a slow name is looked up once for all its waiters") {
  test::HangingLookup resolver(kName);
  NameLookup lookup(kName, 30100);
  for (int i = 0; i < 3; ++i) {
    const auto early = lookup.wait_for(1ms);
    REQUIRE(early.error().code == ErrorCode::kTimeout);
    REQUIRE(early.error().message == "the name 'head.example' has not been looked up yet");
  }
  await_lookups(resolver, 1);
  resolver.resolve_to("127.0.0.7");
  const auto found = lookup.wait_for(kPatience);
  REQUIRE(ntohl(reinterpret_cast<const sockaddr_in*>(found.value().front().get())->sin_addr.s_addr) == 0x7F000007);
  REQUIRE(resolver.count() == 1);
  resolver.resolve_to("127.0.0.8");
  const auto anew = lookup.wait_for(kPatience);
  REQUIRE(ntohl(reinterpret_cast<const sockaddr_in*>(anew.value().front().get())->sin_addr.s_addr) == 0x7F000008);
  REQUIRE(resolver.count() == 2);
}

TEST_CASE("several threads that wait for one name get one answer") {
  test::HangingLookup resolver(kName);
  NameLookup lookup(kName, 1);
  std::vector<std::thread> threads;
  std::atomic<size_t> found = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { found += lookup.wait_for(kPatience).value().size(); });
  }
  await_lookups(resolver, 1);
  std::this_thread::sleep_for(10ms);
  resolver.resolve_to("127.0.0.1");
  for (std::thread& thread : threads) thread.join();
  REQUIRE(found == 4);
}

TEST_CASE("a hanging lookup can be abandoned before it ends") {
  auto resolver = std::make_unique<test::HangingLookup>(kName);
  {
    NameLookup lookup(kName, 1);
    std::stop_source stop;
    std::thread stopper([&] {
      await_lookups(*resolver, 1);
      stop.request_stop();
    });
    const auto found = lookup.wait_for(24h, stop.get_token());
    stopper.join();
    REQUIRE(found.error().code == ErrorCode::kAborted);
  }
  resolver.reset();
}

TEST_CASE("a name that does not resolve is an error that names it") {
  auto resolver = std::make_unique<test::HangingLookup>(kName);
  NameLookup lookup(kName, 1);
  REQUIRE(lookup.wait_for(0ms).error().code == ErrorCode::kTimeout);
  await_lookups(*resolver, 1);
  resolver.reset();
  const auto found = lookup.wait_for(kPatience);
  REQUIRE(found.error().code == ErrorCode::kUnavailable);
  REQUIRE_THAT(found.error().message, Catch::StartsWith("the name 'head.example' cannot be looked up: "));
}
