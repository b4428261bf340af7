// The front's ceiling: streams of an engine that answers at once, over loopback, read by one client. That is a process
// of its own, so that each process has one descriptor per stream.
// Prints, per stream count, medians and spread over rounds of: events per second of wall time, and CPU time of the
// front's thread per event. Then how late events come when all streams have one at the same time, as a batch does, and
// the heap that an open stream holds.
#include <arpa/inet.h>
#include <fmt/core.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "base/log.h"
#include "sched/head/engine.h"
#include "sched/head/engine_status.h"
#include "sched/head/model_info.h"
#include "sched/plan/finish_reason.h"
#include "sched/plan/generate_event.h"
#include "sched/plan/pause_mode.h"
#include "sched/plan/request.h"
#include "server/server.h"
#include "text/tokenizer/byte_level.h"

namespace millrace {
namespace {

constexpr TokenId kVocabulary = 256;

using Clock = std::chrono::steady_clock;

/// How the engine answers.
struct Pace {
  bool hangs = false;         ///< one event and then nothing
  Clock::duration step = {};  ///< not zero: an event of every stream at each multiple of it, which says when it was due
};

/// Microseconds, which both processes count from the same moment.
int64_t microseconds(Clock::time_point at) {
  return std::chrono::duration_cast<std::chrono::microseconds>(at.time_since_epoch()).count();
}

class InstantStream final : public sched::TokenStream {
 public:
  InstantStream(uint32_t events, Pace pace, asio::any_io_executor executor)
      : left_(pace.hangs ? 1 : events), pace_(pace), timer_(std::move(executor)) {
    if (is_paced()) due_ = Clock::time_point(Clock::now().time_since_epoch() / pace.step * pace.step);
  }
  asio::awaitable<sched::GenerateEvent> next() override {
    if (left_ == 0) co_await wait_until(Clock::now() + std::chrono::hours(1));
    sched::GenerateEvent event;
    if (is_paced()) {
      due_ += pace_.step;
      co_await wait_until(due_);
      for (const char digit : fmt::format("{}", microseconds(due_))) event.tokens.push_back(digit);
    } else {
      event.tokens.push_back('a' + static_cast<TokenId>(left_ % 26));
    }
    if (--left_ == 0 && !pace_.hangs) event.finish = sched::FinishReason::kLength;
    co_return event;
  }

 private:
  [[nodiscard]] bool is_paced() const { return pace_.step > Clock::duration::zero(); }
  asio::awaitable<void> wait_until(Clock::time_point at) {
    timer_.expires_at(at);
    co_await timer_.async_wait(asio::use_awaitable);
  }

  uint32_t left_;
  Pace pace_;
  Clock::time_point due_;
  asio::steady_timer timer_;
};

class InstantEngine final : public sched::Engine {
 public:
  explicit InstantEngine(Pace pace) : pace_(pace) {
    info_.context_length = 1 << 20;
    info_.vocab_size = kVocabulary;
  }
  sched::ModelInfo model_info() const override { return info_; }
  sched::EngineStatus status() const override { return {.ready = true}; }
  Result<std::unique_ptr<sched::TokenStream>> submit(sched::GenerateRequest request, async::Runtime& runtime) override {
    return std::unique_ptr<sched::TokenStream>(
        std::make_unique<InstantStream>(request.max_tokens, pace_, runtime.executor()));
  }
  bool abort(const std::string&) override { return false; }
  asio::awaitable<Result<void>> flush_cache(async::Runtime&, async::Duration) override { co_return Result<void>(); }
  bool pause(sched::PauseMode) override { return false; }
  bool resume() override { return false; }
  bool return_waiting(const std::string&) override { return false; }
  bool rebuild(const std::string&) override { return false; }

 private:
  Pace pace_;
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
  const std::string json =
      fmt::format(R"({{"messages":[{{"role":"user","content":"hi"}}],"stream":true,"max_tokens":{}}})", max_tokens);
  const std::string bytes = fmt::format(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
      json.size(), json);
  CHECK(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()), "cannot send");
}

/// Reads the streams until each has ended with `mark`; `read` sees what came, and of which.
template <class Read>
void drain(std::span<const int> fds, std::string_view mark, Read read) {
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
      read(index, std::string_view(block.data(), static_cast<size_t>(bytes)));
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

constexpr std::string_view kEndOfStream = "[DONE]\n\n\r\n0\r\n\r\n";
constexpr std::string_view kFirstToken = "\"content\":\"b\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n\r\n";

/// How late events came, in microseconds. The first of each stream does not count: not all had been asked for then.
std::vector<int64_t> read_delays(std::span<const int> fds) {
  constexpr std::string_view kContent = "\"content\":\"";
  constexpr std::string_view kEventEnd = "\n\n";
  std::vector<std::string> unread(fds.size());
  std::vector<bool> begun(fds.size());
  std::vector<int64_t> delays;
  drain(fds, kEndOfStream, [&](size_t index, std::string_view bytes) {
    const int64_t now = microseconds(Clock::now());
    std::string& text = unread[index];
    text += bytes;
    size_t begin = 0;
    for (size_t end; (end = text.find(kEventEnd, begin)) != std::string::npos; begin = end + kEventEnd.size()) {
      const std::string_view event = std::string_view(text).substr(begin, end - begin);
      const size_t content = event.find(kContent);
      if (content == std::string_view::npos) continue;
      const std::string_view digits = event.substr(content + kContent.size());
      int64_t due = 0;
      if (std::from_chars(digits.data(), digits.data() + digits.size(), due).ec != std::errc()) continue;
      if (begun[index]) delays.push_back(now - due);
      begun[index] = true;
    }
    text.erase(0, begin);
  });
  return delays;
}

struct Quantiles {
  double median, p99, most;  // ms
};
Quantiles quantiles_of(std::vector<int64_t> microseconds) {
  CHECK(!microseconds.empty(), "no events");
  std::ranges::sort(microseconds);
  const auto at = [&](double part) {
    return static_cast<double>(microseconds[static_cast<size_t>(part * static_cast<double>(microseconds.size() - 1))]) /
           1000.0;
  };
  return {at(0.5), at(0.99), at(1.0)};
}

/// The process of the clients, as the parent sees it. It does one thing at a time and answers when it is done.
class Clients {
 public:
  /// Before this process has another thread.
  Clients() {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
    process_ = fork();
    CHECK(process_ >= 0, "cannot fork");
    if (process_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(ends[0]);
      serve(ends[1]);
      std::_Exit(0);
    }
    close(ends[1]);
    end_ = ends[0];
  }
  Clients(const Clients&) = delete;
  ~Clients() {
    close(end_);
    waitpid(process_, nullptr, 0);
  }

  /// Connects that number of further streams.
  void open(uint16_t port, size_t streams) { call({Order::kOpen, port, streams, 0}); }
  /// Asks the last `streams` for `count` tokens each, and reads until each has ended.
  void exchange(size_t streams, uint32_t tokens) { call({Order::kExchange, 0, streams, tokens}); }
  /// Asks the last `streams` for `tokens` each and returns how late the events came.
  Quantiles measure_delays(size_t streams, uint32_t tokens) { return call({Order::kDelays, 0, streams, tokens}); }
  /// Asks the last `streams`, and reads until each has a token.
  void begin(size_t streams) { call({Order::kBegin, 0, streams, 10}); }

 private:
  struct Order {
    enum Kind : uint8_t { kOpen, kExchange, kDelays, kBegin } kind;
    uint16_t port;
    size_t streams;
    uint32_t tokens;
  };

  Quantiles call(const Order& order) const {
    CHECK(write(end_, &order, sizeof order) == sizeof order, "the process of the clients has ended");
    Quantiles answer;
    CHECK(read(end_, &answer, sizeof answer) == sizeof answer, "the process of the clients has ended");
    return answer;
  }
  static void serve(int end) {
    std::vector<int> fds;
    for (Order order; read(end, &order, sizeof order) == sizeof order;) {
      Quantiles answer{};
      if (order.kind == Order::kOpen) {
        for (size_t i = 0; i < order.streams; ++i) fds.push_back(connect_to(order.port));
      } else {
        const std::span<const int> some = std::span(fds).last(order.streams);
        for (const int fd : some) send_request(fd, order.tokens);
        const auto ignore = [](size_t, std::string_view) {};
        switch (order.kind) {
          case Order::kOpen:
          case Order::kExchange: drain(some, kEndOfStream, ignore); break;
          case Order::kBegin: drain(some, kFirstToken, ignore); break;
          case Order::kDelays: answer = quantiles_of(read_delays(some)); break;
        }
      }
      CHECK(write(end, &answer, sizeof answer) == sizeof answer, "the front's process has ended");
    }
  }

  pid_t process_;
  int end_;
};

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

/// Returns whether a process can have `streams` streams; if not, says why.
bool can_open(size_t streams) {
  constexpr rlim_t kOthers = 64;
  rlimit limit{};
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
  limit.rlim_cur = limit.rlim_max;
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
  const rlim_t wanted = streams + kOthers;
  if (limit.rlim_max >= wanted) return true;
  fmt::print("{:5} streams: left out, they take {} descriptors of {} (ulimit -Hn)\n", streams, wanted, limit.rlim_max);
  return false;
}

server::ServerOptions options_for(size_t streams) {
  constexpr size_t kOthers = 16;
  return {.http = {.port = 0, .max_connections = streams + kOthers}, .max_requests_in_flight = streams + kOthers};
}

void measure_events(size_t streams, uint32_t tokens, int rounds) {
  if (!can_open(streams)) return;
  Clients clients;
  InstantEngine engine({});
  server::Server front(options_for(streams), make_service(engine));
  clients.open(front.start().value(), streams);
  std::vector<double> rates;
  std::vector<double> costs;
  // A stream has a role chunk, the tokens, a finish chunk and [DONE].
  const double events = static_cast<double>(streams) * (tokens + 3);
  for (int round = 0; round <= rounds; ++round) {
    const auto cpu = front_cpu_time();
    const auto begin = Clock::now();
    clients.exchange(streams, tokens);
    const std::chrono::duration<double> wall = Clock::now() - begin;
    const std::chrono::duration<double, std::micro> used = front_cpu_time() - cpu;
    if (round == 0) continue;  // warm-up
    rates.push_back(events / wall.count());
    costs.push_back(used.count() / events);
  }
  front.stop(std::chrono::seconds(1));
  const Spread rate = spread(rates);
  const Spread cost = spread(costs);
  fmt::print("{:5} streams x {:5} tokens: {:8.0f} events/s [{:.0f}, {:.0f}]", streams, tokens, rate.median, rate.low,
             rate.high);
  fmt::print("   {:5.2f} us CPU per event [{:.2f}, {:.2f}]\n", cost.median, cost.low, cost.high);
}

/// All streams have an event at the same time, each `step`.
void measure_delays(size_t streams, Clock::duration step, int rounds) {
  if (!can_open(streams)) return;
  Clients clients;
  InstantEngine engine({.step = step});
  server::Server front(options_for(streams), make_service(engine));
  clients.open(front.start().value(), streams);
  constexpr uint32_t kEvents = 8;
  std::vector<double> medians;
  std::vector<double> p99s;
  double most = 0.0;
  for (int round = 0; round < rounds; ++round) {
    const Quantiles delay = clients.measure_delays(streams, kEvents);
    medians.push_back(delay.median);
    p99s.push_back(delay.p99);
    most = std::max(most, delay.most);
  }
  front.stop(std::chrono::seconds(1));
  const Spread median = spread(medians);
  const Spread p99 = spread(p99s);
  fmt::print(
      "{:5} streams, an event of each every {} ms: late by {:.2f} ms [{:.2f}, {:.2f}], p99 {:.2f} [{:.2f}, {:.2f}], "
      "at most {:.2f}\n",
      streams, std::chrono::duration_cast<std::chrono::milliseconds>(step).count(), median.median, median.low,
      median.high, p99.median, p99.low, p99.high, most);
}

size_t heap_bytes() {
  const auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

void measure_memory(size_t streams) {
  if (!can_open(streams)) return;
  Clients clients;
  InstantEngine engine({.hangs = true});
  server::Server front(options_for(streams), make_service(engine));
  const uint16_t port = front.start().value();
  clients.open(port, 1);
  clients.begin(1);
  const size_t before = heap_bytes();
  clients.open(port, streams);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const size_t idle = heap_bytes();
  clients.begin(streams);
  const size_t streaming = heap_bytes();
  const auto per_stream = [&](size_t bytes) {
    return static_cast<double>(bytes - before) / static_cast<double>(streams) / 1024;
  };
  fmt::print("{:5} connections: {:.1f} KiB of heap each when idle, {:.1f} KiB when streaming\n", streams,
             per_stream(idle), per_stream(streaming));
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
      "and its CPU time per event; then how late events come, and the heap that an open stream holds. With STREAMS and "
      "TOKENS the first alone.");
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
  measure_delays(64, std::chrono::milliseconds(20), rounds);
  measure_delays(1000, std::chrono::milliseconds(50), rounds);
  measure_delays(10'000, std::chrono::milliseconds(500), rounds);
  for (const size_t count : {64, 1000, 10'000}) measure_memory(count);
}
