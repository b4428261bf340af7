#pragma once

#include <sys/types.h>

#include <string>
#include <thread>
#include <vector>

#include "cache/store/redis_connection.h"
#include "cache/store/store_support.h"

namespace millrace::test {

/// A port of the loopback that nobody listens on.
[[nodiscard]] uint16_t free_port();

/// Listens, and says `text` to whoever comes, once it has heard something.
class ImpostorServer {
 public:
  explicit ImpostorServer(std::string text);
  ~ImpostorServer();
  ImpostorServer(const ImpostorServer&) = delete;
  ImpostorServer& operator=(const ImpostorServer&) = delete;
  [[nodiscard]] uint16_t port() const { return port_; }

 private:
  void serve() const;

  const std::string text_;
  uint16_t port_ = 0;
  int listener_ = -1;
  std::thread thread_;
};

/// A redis-server of this test's own, in memory, on a free port of the loopback and on a Unix socket; or the program
/// that MILLRACE_TEST_REDIS names, a Valkey server, say. Killed with the object, and with the test.
class RedisServer {
 public:
  /// Returns whether a redis-server is installed.
  [[nodiscard]] static bool installed();
  /// Returns whether the installed server was built with TLS.
  [[nodiscard]] static bool can_encrypt();

  explicit RedisServer(std::vector<std::string> more_arguments = {});
  ~RedisServer();
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  /// Returns when it answers.
  void start();
  void send_signal(int signal) const;
  /// Waits for the end after a signal that ends it.
  void await_end();

  [[nodiscard]] cache::RedisStoreOptions options() const;
  [[nodiscard]] static cache::RedisConnection connect(const cache::RedisStoreOptions& options);
  [[nodiscard]] std::string socket_path() const { return folder_.path() + "/socket"; }
  /// One command, on a connection of its own to database 0.
  cache::RedisReply ask(std::initializer_list<std::string_view> words, std::span<std::byte> into = {}) const;
  void set(const std::string& key, std::span<const std::byte> value) const;

 private:
  TempFolder folder_;
  std::vector<std::string> more_arguments_;
  uint16_t port_ = 0;
  pid_t process_ = -1;
};

}  // namespace millrace::test
