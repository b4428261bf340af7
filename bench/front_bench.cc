// The front's ceiling: streams of an engine that answers at once, over loopback, read by one client thread.
// Prints, per stream count, medians and spread over rounds of: events per second of wall time, and CPU time of the
// front's thread per event. Then the heap that an open stream holds.
#include <arpa/inet.h>
#include <fmt/core.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "base/log.h"
#include "server/server.h"
#include "text/byte_level.h"

namespace millrace {
namespace {

constexpr TokenId kVocabulary = 256;

class InstantStream final : public sched::TokenStream {
 public:
  InstantStream(uint32_t tokens, bool hangs, asio::any_io_executor executor)
      : left_(tokens), hangs_(hangs), timer_(std::move(executor)) {}
  asio::awaitable<sched::GenerateEvent> next() override {
    if (left_ == 0) {
      timer_.expires_after(std::chrono::hours(1));
      co_await timer_.async_wait(asio::use_awaitable);
    }
    sched::GenerateEvent event;
    event.tokens.push_back('a' + static_cast<TokenId>(left_ % 26));
    if (--left_ == 0 && !hangs_) event.finish = sched::FinishReason::kLength;
    co_return event;
  }

 private:
  uint32_t left_;
  bool hangs_;
  asio::steady_timer timer_;
};

/// `hangs`: each stream gives one token and then nothing.
class InstantEngine final : public sched::Engine {
 public:
  explicit InstantEngine(bool hangs) : hangs_(hangs) {
    info_.context_length = 1 << 20;
    info_.vocab_size = kVocabulary;
  }
  const sched::ModelInfo& model_info() const override { return info_; }
  sched::EngineStatus status() const override { return {.ready = true}; }
  Result<std::unique_ptr<sched::TokenStream>> submit(sched::GenerateRequest request,
                                                     async::Runtime& runtime) override {
    return std::unique_ptr<sched::TokenStream>(
        std::make_unique<InstantStream>(hangs_ ? 1 : request.max_tokens, hangs_, runtime.executor()));
  }
  bool abort(const std::string&) override { return false; }
  asio::awaitable<Result<void>> flush_cache(async::Runtime&, async::Duration) override { co_return Result<void>(); }
  bool pause(sched::PauseMode) override { return false; }
  bool resume() override { return false; }

 private:
  bool hangs_;
  sched::ModelInfo info_;
};

std::shared_ptr<const text::Tokenizer> byte_tokenizer() {
  std::string source;
  JsonWriter json(source);
  json.begin_object().key("added_tokens").begin_array().end_array();
  json.key("pre_tokenizer").raw(R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})");
  json.key("decoder").raw(R"({"type":"ByteLevel"})");
  json.key("model").begin_object().member("type", "BPE").key("vocab").begin_object();
  for (int byte = 0; byte < kVocabulary; ++byte) {
    json.member(text::byte_level_char(static_cast<unsigned char>(byte)), byte);
  }
  json.end_object().key("merges").begin_array().end_array().end_object().end_object();
  return text::Tokenizer::from_json(source).value();
}

/// CPU time of the front's thread, which is named "http".
std::chrono::nanoseconds front_cpu_time() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name != "http") continue;
    int64_t nanoseconds = 0;
    std::ifstream(task.path() / "schedstat") >> nanoseconds;
    return std::chrono::nanoseconds(nanoseconds);
  }
  return {};
}

int connect_to(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "cannot connect");
  return fd;
}

void send_request(int fd, uint32_t max_tokens) {
  const std::string json = fmt::format(
      R"({{"messages":[{{"role":"user","content":"hi"}}],"stream":true,"max_tokens":{}}})", max_tokens);
  const std::string bytes = fmt::format(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
      json.size(), json);
  CHECK(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()), "cannot send");
}

/// Reads all streams until each has ended with `mark`.
void drain(const std::vector<int>& fds, std::string_view mark) {
  const int poll = epoll_create1(EPOLL_CLOEXEC);
  std::vector<std::string> tails(fds.size());
  for (size_t i = 0; i < fds.size(); ++i) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
    CHECK(epoll_ctl(poll, EPOLL_CTL_ADD, fds[i], &event) == 0, "epoll_ctl");
  }
  size_t open = fds.size();
  std::vector<char> block(256 << 10);
  while (open > 0) {
    epoll_event ready[64];
    const int count = epoll_wait(poll, ready, 64, -1);
    for (int i = 0; i < count; ++i) {
      const size_t index = ready[i].data.u64;
      const ssize_t bytes = recv(fds[index], block.data(), block.size(), MSG_DONTWAIT);
      if (bytes < 0 && errno == EAGAIN) continue;
      CHECK(bytes > 0, "a stream was cut off");
      std::string& tail = tails[index];
      tail.append(block.data() + std::max<ssize_t>(0, bytes - 64), static_cast<size_t>(std::min<ssize_t>(bytes, 64)));
      if (tail.size() > 128) tail.erase(0, tail.size() - 128);
      if (tail.find(mark) == std::string::npos) continue;
      tail.clear();
      CHECK(epoll_ctl(poll, EPOLL_CTL_DEL, fds[index], nullptr) == 0, "epoll_ctl");
      --open;
    }
  }
  close(poll);
}

struct Spread {
  double low, median, high;
};

Spread spread(std::vector<double> values) {
  std::ranges::sort(values);
  return {values.front(), values[values.size() / 2], values.back()};
}

server::Service make_service(sched::Engine& engine) {
  server::Service service;
  service.engine = &engine;
  service.tokenizer = byte_tokenizer();
  service.chat_template = text::ChatTemplate::from_source("{% for m in messages %}{{ m.content }}{% endfor %}").value();
  return service;
}

/// Whether so many streams can be open, both ends in this process; if not, says why.
bool can_open(size_t streams) {
  constexpr rlim_t kOthers = 64;
  rlimit limit{};
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
  limit.rlim_cur = limit.rlim_max;
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
  const rlim_t wanted = 2 * streams + kOthers;
  if (limit.rlim_max >= wanted) return true;
  fmt::print("{:5} streams: left out, they take {} descriptors of {} (ulimit -Hn)\n", streams, wanted, limit.rlim_max);
  return false;
}

server::ServerOptions options_for(size_t streams) {
  constexpr size_t kOthers = 16;
  return {.port = 0, .max_connections = streams + kOthers, .max_requests_in_flight = streams + kOthers};
}

void measure_events(size_t streams, uint32_t tokens, int rounds) {
  if (!can_open(streams)) return;
  InstantEngine engine(false);
  server::Server front(options_for(streams), make_service(engine));
  const uint16_t port = front.start().value();
  std::vector<int> fds;
  for (size_t i = 0; i < streams; ++i) fds.push_back(connect_to(port));
  std::vector<double> rates;
  std::vector<double> costs;
  // Besides the tokens a stream has a role chunk, a finish chunk and [DONE].
  const double events = static_cast<double>(streams) * (tokens + 3);
  for (int round = 0; round <= rounds; ++round) {
    const auto cpu = front_cpu_time();
    const auto begin = std::chrono::steady_clock::now();
    for (const int fd : fds) send_request(fd, tokens);
    drain(fds, "[DONE]\n\n\r\n0\r\n\r\n");
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
    const std::chrono::duration<double, std::micro> used = front_cpu_time() - cpu;
    if (round == 0) continue;  // warm-up
    rates.push_back(events / wall.count());
    costs.push_back(used.count() / events);
  }
  for (const int fd : fds) close(fd);
  front.stop(std::chrono::seconds(1));
  const Spread rate = spread(rates);
  const Spread cost = spread(costs);
  fmt::print("{:5} streams x {:5} tokens: {:8.0f} events/s [{:.0f}, {:.0f}]", streams, tokens, rate.median, rate.low,
             rate.high);
  fmt::print("   {:5.2f} us CPU per event [{:.2f}, {:.2f}]\n", cost.median, cost.low, cost.high);
}

size_t heap_bytes() {
  const auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

void measure_memory(size_t streams) {
  if (!can_open(streams)) return;
  InstantEngine engine(true);
  server::Server front(options_for(streams), make_service(engine));
  const uint16_t port = front.start().value();
  std::vector<int> fds;
  fds.push_back(connect_to(port));
  send_request(fds.back(), 10);
  drain(fds, "\"content\":\"b\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n\r\n");
  fds.reserve(streams + 1);
  const size_t before = heap_bytes();
  for (size_t i = 0; i < streams; ++i) fds.push_back(connect_to(port));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const size_t idle = heap_bytes();
  const std::vector<int> fresh(fds.begin() + 1, fds.end());
  for (const int fd : fresh) send_request(fd, 10);
  drain(fresh, "\"content\":\"b\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n\r\n");
  const size_t streaming = heap_bytes();
  const auto per_stream = [&](size_t bytes) {
    return static_cast<double>(bytes - before) / static_cast<double>(streams) / 1024;
  };
  fmt::print("{:5} connections: {:.1f} KiB of heap each when idle, {:.1f} KiB when streaming\n", streams,
             per_stream(idle), per_stream(streaming));
  for (const int fd : fds) close(fd);
  front.stop(std::chrono::seconds(1));
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  using namespace millrace;
  int rounds = 7;
  size_t streams = 0;
  uint32_t tokens = 0;
  CLI::App app(
      "front_bench: how many streamed events per second the front makes, with an engine that has every token at once, "
      "and "
      "its CPU time per event; then the heap that an open stream holds. With STREAMS and TOKENS that measurement "
      "alone.");
  app.add_option("ROUNDS", rounds, "after one that does not count")->check(CLI::Range(1, 10000))->capture_default_str();
  CLI::Option* of_streams = app.add_option("STREAMS", streams, "at a time")->check(CLI::Range(1, 50000));
  CLI::Option* of_tokens = app.add_option("TOKENS", tokens, "of each")->check(CLI::Range(1, 1000000));
  of_streams->needs(of_tokens);
  CLI11_PARSE(app, argc, argv);
  log::configure(log::Level::kError, false);
  if (streams > 0) {
    measure_events(streams, tokens, rounds);
    return 0;
  }
  measure_events(1, 20'000, rounds);
  measure_events(64, 2000, rounds);
  measure_events(1000, 200, rounds);
  measure_events(10'000, 20, rounds);
  for (const size_t count : {64, 1000, 10'000}) measure_memory(count);
}
