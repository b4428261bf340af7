#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "base/random.h"
#include "cache/store/page_record.h"
#include "cache/store/redis_server.h"
#include "support/hanging_lookup.h"
#include "support/skip.h"

using namespace millrace;
using namespace millrace::cache;
using namespace millrace::test;
using namespace std::chrono_literals;

namespace {

constexpr const char* kNotInstalled = "redis-server is not installed";

std::unique_ptr<PageStore> open_store(StoreWorld& world, const RedisStoreOptions& options,
                                      const StoreIdentity& identity = make_identity()) {
  auto opened = open_redis_store(world.runtime(), identity, options);
  INFO((opened ? "" : opened.error().message));
  REQUIRE(opened.has_value());
  return std::move(*opened);
}

std::string key_text(uint64_t number, const StoreIdentity& identity = make_identity()) {
  return "millrace:" + hash_of(identity).hex() + ":" + make_key(number).hex();
}

/// Repeats `attempt` until it succeeds; false when it has not for a time that no server needs.
template <class Attempt>
bool eventually(Attempt attempt) {
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (std::chrono::steady_clock::now() < deadline) {
    if (attempt()) return true;
    std::this_thread::sleep_for(20ms);
  }
  return false;
}

}  // namespace

TEST_CASE("pages come back as put over TCP and a Unix socket") {
  if (!RedisServer::installed()) SKIP_TEST(kNotInstalled);
  RedisServer server;
  server.start();
  StoreWorld world;
  auto options = server.options();
  if (GENERATE(true, false)) options.host = server.socket_path();
  const auto store = open_store(world, options);
  world.put_and_get_pages(*store);
  REQUIRE(server.ask({"DBSIZE"}).integer == 300);
  REQUIRE(server.ask({"TTL", key_text(7)}).integer == -1);

  const auto other = open_store(world, options, make_identity("model b"));
  REQUIRE(world.get_all(*other, 0, 300) == 0);
}

TEST_CASE("altered or short or foreign values are misses and deleted") {
  if (!RedisServer::installed()) SKIP_TEST(kNotInstalled);
  RedisServer server;
  server.start();
  StoreWorld world;
  const auto store = open_store(world, server.options());
  REQUIRE(world.put(*store, 1));
  std::vector<std::byte> whole(kRecordBytes);
  REQUIRE(server.ask({"GET", key_text(1)}, whole).bulk_bytes == kRecordBytes);
  uint64_t corrupt = 0;
  const auto expect_miss = [&] {
    REQUIRE_FALSE(world.get(*store, 1));
    REQUIRE(server.ask({"EXISTS", key_text(1)}).integer == 0);
    REQUIRE(store->stats().corrupt == ++corrupt);
  };
  for (uint64_t at = 0; at < kRecordBytes; at += at < 96 || (at >= 4088 && at < 4100) ? 1 : 83) {
    INFO("byte " << at);
    auto altered = whole;
    altered[at] ^= static_cast<std::byte>(1 << static_cast<int>(uniform_at(1, at) * 8));
    server.set(key_text(1), altered);
    expect_miss();
  }
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4096}, kRecordBytes - 1, kRecordBytes + 1, 3 * kRecordBytes}) {
    INFO(size << " bytes");
    auto altered = whole;
    altered.resize(size);
    server.set(key_text(1), altered);
    REQUIRE_FALSE(world.exists(*store, 1));
    expect_miss();
  }
  REQUIRE(server.ask({"LPUSH", key_text(1), "x"}).integer == 1);
  REQUIRE_FALSE(world.exists(*store, 1));
  expect_miss();
  REQUIRE(store->stats().foreign == 0);
  server.set(key_text(2), whole);
  REQUIRE_FALSE(world.get(*store, 2));
  server.set(key_text(1, make_identity("model b")), whole);
  const auto other = open_store(world, server.options(), make_identity("model b"));
  REQUIRE_FALSE(world.get(*other, 1));
  REQUIRE(store->stats().foreign + other->stats().foreign == 2);
  REQUIRE(world.put(*store, 1));
  REQUIRE(world.get(*store, 1));
}

TEST_CASE("password and database and time to live take effect") {
  if (!RedisServer::installed()) SKIP_TEST(kNotInstalled);
  RedisServer server({"--requirepass", "a secret"});
  server.start();
  StoreWorld world;
  const auto message = [&](const RedisStoreOptions& options) {
    const CapturedLog log;
    const auto opened = open_redis_store(world.runtime(), make_identity(), options);
    REQUIRE(log.text().find("secret") == std::string::npos);
    return opened ? std::string() : opened.error().message;
  };
  auto wrong = server.options();
  wrong.password = "another secret";
  REQUIRE_THAT(message(wrong), Catch::Contains("refuses the password") && !Catch::Contains("secret"));
  wrong.password.clear();
  REQUIRE_THAT(message(wrong), Catch::Contains("NOAUTH"));
  wrong = server.options();
  wrong.user = "nobody";
  REQUIRE_THAT(message(wrong), Catch::Contains("user 'nobody'"));
  wrong = server.options();
  wrong.db = 4;
  REQUIRE_THAT(message(wrong), Catch::Contains("database 4"));

  auto options = server.options();
  options.db = 3;
  options.user = "default";
  options.ttl_s = 1000;
  const auto store = open_store(world, options);
  REQUIRE(world.put(*store, 1));
  REQUIRE(server.ask({"EXISTS", key_text(1)}).integer == 0);  // of database 0
  const auto ttl = [&] {
    RedisConnection connection = RedisServer::connect(options);
    connection.queue({"TTL", key_text(1)});
    connection.queue({"EXPIRE", key_text(1), "100"});
    connection.send();
    const int64_t found = connection.receive().integer;
    REQUIRE(connection.receive().integer == 1);
    return found;
  };
  REQUIRE(ttl() > 900);
  REQUIRE(world.get(*store, 1));
  REQUIRE(ttl() > 900);
  REQUIRE(world.put(*store, 1));
  REQUIRE(ttl() > 900);
}

TEST_CASE("a killed server gives misses and one line until it is back") {
  if (!RedisServer::installed()) SKIP_TEST(kNotInstalled);
  RedisServer server;
  server.start();
  StoreWorld world;
  const CapturedLog log;
  const auto store = open_store(world, server.options());
  REQUIRE(world.put_all(*store, 0, 50) == 50);
  for (int life = 1; life <= 2; ++life) {
    server.send_signal(SIGKILL);
    server.await_end();
    REQUIRE(world.get_all(*store, 0, 200) == 0);
    REQUIRE(world.put_all(*store, 0, 200) == 0);
    REQUIRE_FALSE(world.exists(*store, 0));
    REQUIRE(log.count("every get misses") == static_cast<size_t>(life));
    server.start();
    REQUIRE(eventually([&] { return world.put(*store, 1000); }));
    // The line comes after the first put that succeeds, when the thread that writes it stands still.
    REQUIRE(eventually([&] { return log.count("answers again") == static_cast<size_t>(life); }));
    REQUIRE(world.put_all(*store, 0, 50) == 50);
    REQUIRE(world.get_all(*store, 0, 50) == 50);
  }
  // What was idle since before the server's death notices by itself.
  REQUIRE(store->stats().errors == 2);
}

TEST_CASE("a server killed under load ends every operation") {
  if (!RedisServer::installed()) SKIP_TEST(kNotInstalled);
  RedisServer server;
  server.start();
  StoreWorld world;
  const auto store = open_store(world, server.options());
  REQUIRE(world.put_all(*store, 0, 1000) == 1000);
  std::thread killer([&] {
    std::this_thread::sleep_for(5ms);
    server.send_signal(SIGKILL);
  });
  size_t got = 1000;
  for (int i = 0; i < 1000 && got == 1000; ++i) got = world.get_all(*store, 0, 1000);
  killer.join();
  REQUIRE(got < 1000);
}

TEST_CASE("a stopped server is given up and used again when it goes on") {
  if (!RedisServer::installed()) SKIP_TEST(kNotInstalled);
  RedisServer server;
  server.start();
  StoreWorld world;
  const CapturedLog log;
  auto options = server.options();
  options.timeout_ms = 300;
  const auto store = open_store(world, options);
  REQUIRE(eventually([&] { return world.put_all(*store, 0, 50) == 50; }));
  const size_t lines = log.count("every get misses");
  server.send_signal(SIGSTOP);
  REQUIRE(world.get_all(*store, 0, 200) == 0);
  REQUIRE(world.put_all(*store, 100, 200) == 0);
  REQUIRE(log.count("every get misses") == lines + 1);
  REQUIRE(log.count("no progress within 300 ms") >= 1);
  server.send_signal(SIGCONT);
  REQUIRE(eventually([&] { return world.get_all(*store, 0, 50) == 50; }));
}

TEST_CASE("a server that is not there at start is used when it comes") {
  if (!RedisServer::installed()) SKIP_TEST(kNotInstalled);
  RedisServer server;
  StoreWorld world;
  const CapturedLog log;
  const auto store = open_store(world, server.options());
  REQUIRE_FALSE(world.put(*store, 1));
  REQUIRE(log.count("Connection refused") == 1);
  server.start();
  REQUIRE(eventually([&] { return world.put(*store, 1); }));
  REQUIRE(world.get(*store, 1));
}

TEST_CASE("a server with a slow name is used later and stop still works") {
  if (!RedisServer::installed()) SKIP_TEST(kNotInstalled);
  RedisServer server;
  server.start();
  HangingLookup resolver("redis.example");
  StoreWorld world;
  auto options = server.options();
  options.host = "redis.example";
  options.timeout_ms = 100;
  const CapturedLog log;
  {
    const auto given_up = open_store(world, options);
    REQUIRE_FALSE(world.put(*given_up, 1));
    REQUIRE(log.count("the name 'redis.example' has not been looked up yet; every get misses") == 1);
  }
  const auto store = open_store(world, options);
  REQUIRE_FALSE(world.put(*store, 1));
  resolver.resolve_to("127.0.0.1");
  REQUIRE(eventually([&] { return world.put(*store, 1); }));
}

TEST_CASE("a full server refuses puts and logs once") {
  if (!RedisServer::installed()) SKIP_TEST(kNotInstalled);
  RedisServer server({"--maxmemory", "3mb"});
  server.start();
  StoreWorld world;
  const CapturedLog log;
  const auto store = open_store(world, server.options());
  const size_t stored = world.put_all(*store, 0, 1000);
  REQUIRE(stored > 0);
  REQUIRE(stored < 1000);
  REQUIRE(world.get_all(*store, 0, 1000) == stored);
  REQUIRE(store->stats().refused == 1000 - stored);
  REQUIRE(log.count("refuses SET: OOM") == 1);
}

TEST_CASE("what is no Redis server gives misses") {
  const std::string text = GENERATE(as<std::string>(), "", "HTTP/1.1 400 Bad Request\r\n\r\n", "$-x\r\n", "\r\n",
                                    ":1:\r\n", "$99999999999999\r\n", "$3\r\nabcde", "*1\r\n$4\r\nPONG\r\n",
                                    "+" + std::string(200000, 'x'), "$184467440737095516160\r\n");
  const ImpostorServer server(text);
  StoreWorld world;
  RedisStoreOptions options;
  options.port = server.port();
  const CapturedLog log;
  const auto store = open_store(world, options);
  REQUIRE_FALSE(world.get(*store, 1));
  REQUIRE_FALSE(world.put(*store, 1));
  REQUIRE(log.count("every get misses") == 1);
}

TEST_CASE("options of a server that cannot work are named") {
  StoreWorld world;
  const auto message = [&](auto change) {
    RedisStoreOptions options;
    change(options);
    const auto opened = open_redis_store(world.runtime(), make_identity(), options);
    return opened ? std::string() : opened.error().message;
  };
  REQUIRE_THAT(message([](auto& o) { o.host.clear(); }), Catch::Contains("host is empty"));
  REQUIRE_THAT(message([](auto& o) { o.host = "/" + std::string(200, 'x'); }), Catch::Contains("201 bytes"));
  REQUIRE_THAT(message([](auto& o) { o.port = 0; }), Catch::Contains("port is 0"));
  REQUIRE_THAT(message([](auto& o) { o.db = -1; }), Catch::Contains("database is -1"));
  REQUIRE_THAT(message([](auto& o) { o.ttl_s = -5; }), Catch::Contains("-5"));
  REQUIRE_THAT(message([](auto& o) { o.timeout_ms = 0; }), Catch::Contains("time-out in ms is 0"));
  REQUIRE_THAT(message([](auto& o) { o.threads = 1000; }), Catch::Contains("1000"));
  REQUIRE_THAT(message([](auto& o) { o.max_queued_puts = 0; }), Catch::Contains("puts is 0"));
}
