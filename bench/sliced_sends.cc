#include "sliced_sends.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <chrono>
#include <future>
#include <vector>

#include "async/real_runtime.h"
#include "async/task_group.h"
#include "rank_group_bench.h"
#include "comm/tcp_link.h"
#include "sched/stage/activation_slices.h"

namespace millrace::bench {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using tensor::DType;
using tensor::Matrix;

constexpr RingEpoch kEpoch{1};
constexpr size_t kWindow = 4;

std::future<void> start_on(async::IoThread& thread, asio::awaitable<void> task) {
  auto done = std::make_shared<std::promise<void>>();
  asio::co_spawn(thread.context(), std::move(task), [done](const std::exception_ptr& failure) {
    failure ? done->set_exception(failure) : done->set_value();
  });
  return done->get_future();
}

/// The link of one rank with its counterpart: a thread at either end.
class RankLink {
 public:
  explicit RankLink(uint64_t ring) {
    listener_ = comm::TcpListener::open(sender_thread_.runtime(), {"127.0.0.1", 0}).value();
    start_on(sender_thread_, build(ring)).get();
  }
  ~RankLink() {
    start_on(sender_thread_, close_sender()).get();
    start_on(receiver_thread_, close_receiver()).get();
    sender_thread_.join();
    receiver_thread_.join();
  }
  RankLink(const RankLink&) = delete;
  RankLink& operator=(const RankLink&) = delete;

  /// Sends `bytes` after `prepare` has run, on the sender's thread.
  std::future<void> send(uint64_t number, std::span<const std::byte> bytes, std::function<void()> prepare) {
    return start_on(sender_thread_, send_one(number, bytes, std::move(prepare)));
  }
  /// Receives into `target` and then runs `finish`, on the receiver's thread.
  std::future<void> receive(uint64_t number, std::span<std::byte> target, std::function<void()> finish) {
    return start_on(receiver_thread_, receive_one(number, target, std::move(finish)));
  }

 private:
  static comm::TcpLinkOptions options() {
    comm::TcpLinkOptions options;
    options.window = kWindow;
    options.silence = 10s;
    return options;
  }
  async::TimePoint soon() { return sender_thread_.runtime().now() + 10s; }
  asio::awaitable<void> accept(comm::LinkHello hello) {
    auto accepted = co_await listener_->accept_link(receiver_group_, hello, options(), soon());
    receiver_ = std::move(accepted).value();
  }
  asio::awaitable<void> build(uint64_t ring) {
    comm::LinkHello hello;
    hello.ring = ring;
    hello.epoch = kEpoch;
    hello.to = StageId(1);
    async::TaskGroup tasks(sender_thread_.runtime());
    tasks.spawn("accept", accept(hello));
    auto sender = co_await comm::connect_link(sender_thread_.runtime(), sender_group_, listener_->endpoint(), hello,
                                              options(), soon());
    co_await tasks.join();
    sender_ = std::move(sender).value();
  }
  asio::awaitable<void> send_one(uint64_t number, std::span<const std::byte> bytes, std::function<void()> prepare) {
    prepare();
    comm::Work work = sender_->send_borrowed(comm::MessageKind::kActivations, kEpoch, PlanId(number), bytes);
    co_await work.commit();
  }
  asio::awaitable<void> receive_one(uint64_t number, std::span<std::byte> target, std::function<void()> finish) {
    receiver_->post(PlanId(number), target);
    {
      const comm::Message message = co_await receiver_->receive(comm::MessageKind::kActivations);
    }
    finish();
  }
  asio::awaitable<void> close_sender() {
    sender_.reset();
    co_await sender_group_.shutdown();
    co_await listener_->shutdown();
  }
  asio::awaitable<void> close_receiver() {
    receiver_.reset();
    co_await receiver_group_.shutdown();
  }

  async::IoThread sender_thread_{"sender"};
  async::IoThread receiver_thread_{"receiver"};
  comm::TcpLinkGroup sender_group_{sender_thread_.runtime()};
  comm::TcpLinkGroup receiver_group_{receiver_thread_.runtime()};
  std::unique_ptr<comm::TcpListener> listener_;
  std::unique_ptr<comm::LinkSender> sender_;
  std::unique_ptr<comm::LinkReceiver> receiver_;
};

/// The memory of one rank at one end.
struct RankMemory {
  RankMemory(tensor::Backend& backend, int64_t rows, int64_t cols, int64_t slice_cols)
      : whole(backend.allocate(static_cast<size_t>(rows * cols) * sizeof(float))),
        slice(backend.allocate(static_cast<size_t>(rows * slice_cols) * sizeof(float))),
        whole_matrix{whole.data(), DType::kF32, rows, cols},
        slice_matrix{slice.data(), DType::kF32, rows, slice_cols} {}
  tensor::Buffer whole;
  tensor::Buffer slice;
  Matrix whole_matrix;
  Matrix slice_matrix;
};

}  // namespace

SendFigures measure_sends(int32_t ranks, int64_t rows, int64_t cols, bool sliced, size_t count) {
  const BenchRanks senders = make_shared_ranks(ranks, 1);
  const BenchRanks receivers = make_shared_ranks(ranks, 1);
  std::vector<std::unique_ptr<RankLink>> links;
  std::vector<RankMemory> from;
  std::vector<RankMemory> to;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    links.push_back(std::make_unique<RankLink>(static_cast<uint64_t>(rank) + 1));
    const auto at = static_cast<size_t>(rank);
    from.emplace_back(*senders.backends[at], rows, cols, cols / ranks);
    to.emplace_back(*receivers.backends[at], rows, cols, cols / ranks);
  }
  const auto travelling = [sliced](RankMemory& memory) {
    const Matrix& matrix = sliced ? memory.slice_matrix : memory.whole_matrix;
    return std::span(matrix.data, matrix.bytes());
  };
  std::vector<double> times_us;
  for (size_t i = 0; i <= count; ++i) {
    const auto start = Clock::now();
    std::vector<std::future<void>> pending;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const auto at = static_cast<size_t>(rank);
      const sched::ActivationSlices slices({rank, ranks}, ranks, cols);
      pending.push_back(links[at]->receive(i, travelling(to[at]), [&, at, slices] {
        receivers.backends[at]->run_and_wait([&] {
          if (sliced) slices.gather(*receivers.ends[at], to[at].slice_matrix, to[at].whole_matrix);
        });
      }));
      pending.push_back(links[at]->send(i, travelling(from[at]), [&, at, slices] {
        senders.backends[at]->run_and_wait([&] {
          if (sliced) slices.pack(*senders.backends[at], from[at].whole_matrix, from[at].slice_matrix);
        });
      }));
    }
    for (auto& each : pending) each.get();
    if (i > 0) times_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  std::ranges::sort(times_us);
  return {.link_bytes = travelling(from[0]).size(),
          .median_us = times_us[times_us.size() / 2],
          .min_us = times_us.front(),
          .max_us = times_us.back()};
}

}  // namespace millrace::bench
