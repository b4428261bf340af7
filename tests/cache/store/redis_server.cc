#include "cache/store/redis_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <random>
#include <thread>

namespace millrace::test {
namespace {

/// A socket on a port of the loopback, below those that the system gives to connections and to those who ask for any:
/// once closed, it stays free.
int bind_somewhere(uint16_t& port) {
  const int bound = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::random_device random;
  std::uniform_int_distribution<uint16_t> any(16384, 32767);
  do {
    port = any(random);
    address.sin_port = htons(port);
    errno = 0;
  } while (bind(bound, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 && errno == EADDRINUSE);
  REQUIRE(errno == 0);
  return bound;
}

std::string program() {
  const char* const given = std::getenv("MILLRACE_TEST_REDIS");
  return given != nullptr ? given : "redis-server";
}

}  // namespace

uint16_t free_port() {
  uint16_t port = 0;
  close(bind_somewhere(port));
  return port;
}

ImpostorServer::ImpostorServer(std::string text) : text_(std::move(text)), listener_(bind_somewhere(port_)) {
  REQUIRE(listen(listener_, 8) == 0);
  thread_ = std::thread([this] { serve(); });
}

ImpostorServer::~ImpostorServer() {
  shutdown(listener_, SHUT_RDWR);
  thread_.join();
  close(listener_);
}

void ImpostorServer::serve() const {
  for (;;) {
    const int peer = accept(listener_, nullptr, nullptr);
    if (peer < 0) return;
    char heard[64];
    if (recv(peer, heard, sizeof heard, 0) > 0) send(peer, text_.data(), text_.size(), MSG_NOSIGNAL);
    close(peer);
  }
}

bool RedisServer::installed() {
  return std::system(("command -v " + program() + " > /dev/null 2>&1").c_str()) == 0;
}

bool RedisServer::can_encrypt() {
  return std::system(("ldd \"$(command -v " + program() + ")\" 2> /dev/null | grep -q libssl").c_str()) == 0;
}

RedisServer::RedisServer(std::vector<std::string> more_arguments)
    : more_arguments_(std::move(more_arguments)), port_(free_port()) {}

RedisServer::~RedisServer() {
  if (process_ < 0) return;
  kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
}

void RedisServer::start() {
  std::vector<std::string> words = {
      program(), "--port", std::to_string(port_), "--bind", "127.0.0.1", "--unixsocket", socket_path(),
      "--save",  "",       "--appendonly",        "no",     "--dir",     folder_.path(), "--databases",
      "4"};
  words.insert(words.end(), more_arguments_.begin(), more_arguments_.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  process_ = fork();
  REQUIRE(process_ >= 0);
  if (process_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int nothing = open("/dev/null", O_RDWR);
    dup2(nothing, STDOUT_FILENO);
    dup2(nothing, STDERR_FILENO);
    execvp(pointers[0], pointers.data());
    _exit(127);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (;;) {
    try {
      const cache::RedisConnection probe = connect(options());
      return;
    } catch (const ErrorException& failure) {
      INFO(failure.what());
      REQUIRE(failure.error().code == ErrorCode::kUnavailable);
      REQUIRE(std::chrono::steady_clock::now() < deadline);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

cache::RedisConnection RedisServer::connect(const cache::RedisStoreOptions& options) {
  async::NameLookup host(options.host, options.port);
  return {options, host};
}

void RedisServer::send_signal(int signal) const {
  REQUIRE(kill(process_, signal) == 0);
}

void RedisServer::await_end() {
  REQUIRE(waitpid(process_, nullptr, 0) == process_);
  process_ = -1;
}

cache::RedisStoreOptions RedisServer::options() const {
  cache::RedisStoreOptions options;
  options.port = port_;
  options.max_queued_puts = 10000;
  for (size_t i = 0; i + 1 < more_arguments_.size(); ++i) {
    if (more_arguments_[i] == "--requirepass") options.password = more_arguments_[i + 1];
  }
  // A loaded machine may be slow, and where a test wants silence it says so itself.
  options.timeout_ms = 10000;
  return options;
}

cache::RedisReply RedisServer::ask(std::initializer_list<std::string_view> words, std::span<std::byte> into) const {
  cache::RedisConnection connection = connect(options());
  connection.queue(words);
  connection.send();
  return connection.receive({into, {}});
}

void RedisServer::set(const std::string& key, std::span<const std::byte> value) const {
  cache::RedisConnection connection = connect(options());
  connection.queue_value({"SET", key}, {value, {}});
  connection.send();
  REQUIRE(connection.receive().text == "OK");
}

}  // namespace millrace::test
