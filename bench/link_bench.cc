#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "async/real_runtime.h"
#include "base/check.h"
#include "base/log.h"
#include "comm/in_process_link.h"
#include "comm/tcp_link.h"

/// How long a plan takes between two threads and how fast activations go, over a link within the process, a TCP link,
/// plain blocking sockets, and plain sockets that are polled, as any event loop has to. The kinds of link take turns,
/// so that a noisy machine treats them alike.
namespace {

using namespace millrace;
using Clock = std::chrono::steady_clock;

constexpr size_t kWindow = 4;
constexpr RingEpoch kEpoch{1};

struct BenchOptions {
  size_t plan_bytes = 200;
  size_t plan_count = 2000;
  size_t tensor_bytes = size_t{64} << 20;
  size_t tensor_count = 8;
  size_t rounds = 7;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Median and spread of one figure over the rounds.
struct Series {
  std::vector<double> values;
  [[nodiscard]] double at(double fraction) const {
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<size_t>(fraction * static_cast<double>(sorted.size() - 1) + 0.5)];
  }
};

/// What is measured: two threads that play ping-pong with plans, then one that sends tensors to the other.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual void ping_pong(size_t bytes, size_t count) = 0;
  virtual void stream(std::span<const std::byte> tensor, size_t count) = 0;
};

/// A header with the length, then the payload, by blocking calls: what any transport can be held to.
class PlainSockets : public Wire {
 public:
  PlainSockets() {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    CHECK(bind(listener, generic, length) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, generic, &length) == 0);
    here_ = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(here_, generic, length) == 0);
    there_ = accept(listener, nullptr, nullptr);
    close(listener);
    const int on = 1;
    for (const int each : {here_, there_}) setsockopt(each, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  ~PlainSockets() override {
    close(here_);
    close(there_);
  }

  void ping_pong(size_t bytes, size_t count) override {
    std::thread peer([this, bytes, count] {
      std::vector<std::byte> frame(32 + bytes);
      for (size_t i = 0; i < count; ++i) {
        receive(there_, frame);
        send(there_, frame);
      }
    });
    std::vector<std::byte> frame(32 + bytes);
    for (size_t i = 0; i < count; ++i) {
      send(here_, frame);
      receive(here_, frame);
    }
    peer.join();
  }

  void stream(std::span<const std::byte> tensor, size_t count) override {
    std::thread peer([this, count] {
      std::vector<std::byte> header(32);
      for (size_t i = 0; i < count; ++i) {
        receive(there_, header);
        receive(there_, buffer_);
      }
      send(there_, header);
    });
    buffer_.resize(tensor.size());
    std::vector<std::byte> header(32);
    for (size_t i = 0; i < count; ++i) {
      send(here_, header);
      send(here_, tensor);
    }
    receive(here_, header);
    peer.join();
  }

 protected:
  virtual void receive(int descriptor, std::span<std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::recv(descriptor, bytes.data(), bytes.size(), 0);
      CHECK(count > 0);
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
  }
  [[nodiscard]] std::array<int, 2> descriptors() const { return {here_, there_}; }

 private:
  static void send(int descriptor, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      CHECK(count > 0);
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
  }

  int here_ = -1;
  int there_ = -1;
  std::vector<std::byte> buffer_;
};

/// Sockets whose receiver waits in epoll, as an event loop must.
class PolledSockets final : public PlainSockets {
 public:
  PolledSockets() {
    for (size_t i = 0; i < polls_.size(); ++i) {
      polls_[i] = epoll_create1(0);
      epoll_event event{};
      event.events = EPOLLIN;
      CHECK(polls_[i] >= 0 && epoll_ctl(polls_[i], EPOLL_CTL_ADD, descriptors()[i], &event) == 0);
    }
  }
  ~PolledSockets() override {
    for (const int poll : polls_) close(poll);
  }

 protected:
  void receive(int descriptor, std::span<std::byte> bytes) override {
    const int poll = polls_[descriptor == descriptors()[0] ? 0 : 1];
    while (!bytes.empty()) {
      epoll_event event{};
      CHECK(epoll_wait(poll, &event, 1, -1) == 1);
      const ssize_t count = ::recv(descriptor, bytes.data(), bytes.size(), MSG_DONTWAIT);
      CHECK(count > 0);
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
  }

 private:
  std::array<int, 2> polls_{-1, -1};
};

/// Runs `task` on the thread and waits for it.
void run_on(async::IoThread& thread, asio::awaitable<void> task) {
  std::promise<void> done;
  asio::co_spawn(thread.context(), std::move(task), [&done](const std::exception_ptr& failure) {
    if (failure) {
      done.set_exception(failure);
    } else {
      done.set_value();
    }
  });
  done.get_future().get();
}

/// A link each way between two threads.
class LinkWire : public Wire {
 public:
  void ping_pong(size_t bytes, size_t count) override {
    std::thread peer([this, count] { run_on(*there_thread_, answer_plans(count)); });
    run_on(*here_thread_, send_plans(bytes, count));
    peer.join();
  }
  void stream(std::span<const std::byte> tensor, size_t count) override {
    std::thread peer([this, count, &tensor] { run_on(*there_thread_, take_tensors(tensor.size(), count)); });
    run_on(*here_thread_, send_tensors(tensor, count));
    peer.join();
  }

 protected:
  asio::awaitable<void> answer_plans(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const comm::Message message = co_await forth_.receiver->receive(comm::MessageKind::kPlan);
      const auto bytes = message.payload.bytes();
      back_.sender->send(comm::MessageKind::kOutput, kEpoch, message.plan, {bytes.begin(), bytes.end()});
    }
  }
  asio::awaitable<void> send_plans(size_t bytes, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      forth_.sender->send(comm::MessageKind::kPlan, kEpoch, PlanId(i), std::vector<std::byte>(bytes));
      (void)co_await back_.receiver->receive(comm::MessageKind::kOutput);
    }
  }
  /// Receives like a stage: the next tensors may arrive in one buffer while the other is in use.
  asio::awaitable<void> take_tensors(size_t size, size_t count) {
    for (auto& buffer : buffers_) buffer.resize(forth_.receiver->fills_posted() ? size : 0);
    for (size_t i = 0; i < std::min(count, buffers_.size()); ++i) forth_.receiver->post(PlanId(i), buffers_[i]);
    for (size_t i = 0; i < count; ++i) {
      (void)co_await forth_.receiver->receive(comm::MessageKind::kActivations);
      const size_t next = i + buffers_.size();
      if (next < count) forth_.receiver->post(PlanId(next), buffers_[next % buffers_.size()]);
    }
    back_.sender->send(comm::MessageKind::kOutput, kEpoch, PlanId(0), {});
  }
  asio::awaitable<void> send_tensors(std::span<const std::byte> tensor, size_t count) {
    comm::Work previous;
    for (size_t i = 0; i < count; ++i) {
      comm::Work work = std::exchange(
          previous, forth_.sender->send_borrowed(comm::MessageKind::kActivations, kEpoch, PlanId(i), tensor));
      co_await work.commit();
    }
    co_await previous.commit();
    (void)co_await back_.receiver->receive(comm::MessageKind::kOutput);
  }

  std::unique_ptr<async::IoThread> here_thread_ = std::make_unique<async::IoThread>("here");
  std::unique_ptr<async::IoThread> there_thread_ = std::make_unique<async::IoThread>("there");
  std::array<std::vector<std::byte>, 2> buffers_;
  comm::Link forth_;
  comm::Link back_;
};

class InProcessWire final : public LinkWire {
 public:
  InProcessWire() {
    forth_ = comm::make_in_process_link(here_thread_->runtime(), there_thread_->runtime(), kWindow);
    back_ = comm::make_in_process_link(there_thread_->runtime(), here_thread_->runtime(), kWindow);
  }
  ~InProcessWire() override {
    here_thread_->join();
    there_thread_->join();
  }
};

class TcpWire final : public LinkWire {
 public:
  TcpWire() {
    listener_ = comm::TcpListener::open(here_thread_->runtime(), {"127.0.0.1", 0}).value();
    run_on(*here_thread_, build());
  }
  ~TcpWire() override {
    run_on(*here_thread_, let_go(forth_.sender, back_.receiver, here_group_));
    run_on(*there_thread_, let_go(back_.sender, forth_.receiver, there_group_));
    run_on(*here_thread_, listener_->shutdown());
    here_thread_->join();
    there_thread_->join();
  }

 private:
  asio::awaitable<void> build() {
    forth_ = co_await make(here_group_, there_group_, 1);
    back_ = co_await make(there_group_, here_group_, 2);
  }
  asio::awaitable<void> accept_into(comm::TcpLinkGroup& group, comm::LinkHello hello,
                                    std::unique_ptr<comm::LinkReceiver>& receiver) {
    auto accepted = co_await listener_->accept_link(group, hello, options(), soon());
    receiver = std::move(accepted.value());
  }
  asio::awaitable<comm::Link> make(comm::TcpLinkGroup& from, comm::TcpLinkGroup& to, uint64_t ring) {
    comm::LinkHello hello;
    hello.ring = ring;
    hello.epoch = kEpoch;
    comm::Link link;
    async::TaskGroup tasks(here_thread_->runtime());
    tasks.spawn("accept", accept_into(to, hello, link.receiver));
    auto sender =
        co_await comm::connect_link(here_thread_->runtime(), from, listener_->endpoint(), hello, options(), soon());
    co_await tasks.join();
    link.sender = std::move(sender.value());
    co_return link;
  }
  static asio::awaitable<void> let_go(std::unique_ptr<comm::LinkSender>& sender,
                                      std::unique_ptr<comm::LinkReceiver>& receiver, comm::TcpLinkGroup& group) {
    sender.reset();
    receiver.reset();
    co_await group.shutdown();
  }
  async::TimePoint soon() { return here_thread_->runtime().now() + std::chrono::seconds(10); }
  static comm::TcpLinkOptions options() {
    comm::TcpLinkOptions options;
    options.window = kWindow;
    options.silence = std::chrono::seconds(10);
    return options;
  }

  std::unique_ptr<comm::TcpListener> listener_;
  comm::TcpLinkGroup here_group_{here_thread_->runtime()};
  comm::TcpLinkGroup there_group_{there_thread_->runtime()};
};

struct Figures {
  std::string name;
  std::unique_ptr<Wire> wire;
  Series round_trip_us;
  Series gigabytes_per_s;
};

void measure(Figures& figures, const BenchOptions& options, std::span<const std::byte> tensor) {
  auto start = Clock::now();
  figures.wire->ping_pong(options.plan_bytes, options.plan_count);
  figures.round_trip_us.values.push_back(seconds_since(start) * 1e6 / static_cast<double>(options.plan_count));
  start = Clock::now();
  figures.wire->stream(tensor, options.tensor_count);
  const double bytes = static_cast<double>(tensor.size()) * static_cast<double>(options.tensor_count);
  figures.gigabytes_per_s.values.push_back(bytes / seconds_since(start) / 1e9);
}

void report(const std::vector<Figures>& all, const BenchOptions& options) {
  fmt::print("{:>14}  {:>30}  {:>30}\n", "", fmt::format("{} B there and back, us", options.plan_bytes),
             fmt::format("{:.1f} MiB tensors, GB/s", static_cast<double>(options.tensor_bytes) / (1 << 20)));
  for (const Figures& each : all) {
    const auto cell = [](const Series& series) {
      return fmt::format("{:8.2f} ({:.2f} to {:.2f})", series.at(0.5), series.at(0.0), series.at(1.0));
    };
    fmt::print("{:>14}  {:>30}  {:>30}\n", each.name, cell(each.round_trip_us), cell(each.gigabytes_per_s));
  }
  fmt::print("medians (least to most) of {} rounds\n", options.rounds);
  for (const size_t other : {size_t{2}, size_t{3}}) {
    const auto ratio = [&](Series Figures::* figure) {
      return (all[1].*figure).at(0.5) / (all[other].*figure).at(0.5);
    };
    fmt::print("TCP link / {}: {:.2f} of the throughput, {:.2f} of the latency\n", all[other].name,
               ratio(&Figures::gigabytes_per_s), ratio(&Figures::round_trip_us));
  }
}

}  // namespace

int main(int argc, char** argv) {
  BenchOptions options;
  CLI::App app(
      "link_bench: latency of plans and throughput of activations over links within a process, TCP links on "
      "loopback, and plain sockets, blocking and polled.");
  app.add_option("--plan-bytes", options.plan_bytes, "size of a plan")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--plan-count", options.plan_count, "plans there and back per round")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--tensor-bytes", options.tensor_bytes, "size of a tensor")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--tensor-count", options.tensor_count, "tensors per round")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "rounds, after one that does not count")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  log::configure(log::Level::kError, false);

  std::vector<Figures> all;
  all.push_back({"in process", std::make_unique<InProcessWire>(), {}, {}});
  all.push_back({"TCP link", std::make_unique<TcpWire>(), {}, {}});
  all.push_back({"plain sockets", std::make_unique<PlainSockets>(), {}, {}});
  all.push_back({"polled sockets", std::make_unique<PolledSockets>(), {}, {}});
  const std::vector<std::byte> tensor(options.tensor_bytes, std::byte{1});
  for (size_t round = 0; round <= options.rounds; ++round) {
    for (Figures& each : all) {
      measure(each, options, tensor);
      if (round == 0) each.round_trip_us.values.clear();
      if (round == 0) each.gigabytes_per_s.values.clear();
    }
  }
  report(all, options);
  return 0;
}
