// Channels between two GPUs by NCCL, over a fake of its library: what arrives, what work that is submitted early sees,
// and how channels end.

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_future.hpp>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <future>

#include "async/real_runtime.h"
#include "async/task_group.h"
#include "base/result.h"
#include "comm/in_process_link.h"
#include "cuda/cuda_backend.h"
#include "cuda/emulator/fake_runtime.h"
#include "sched/device_link.h"
#include "tensor/backend.h"

using namespace millrace;
using namespace std::chrono_literals;

namespace {

/// Two GPUs, and NCCL's fake for whoever loads the library first.
struct TwoGpus {
  TwoGpus() {
    emulator::reset();
    emulator::set_device_count(2);
    REQUIRE(setenv("MILLRACE_NCCL_LIBRARY", MILLRACE_FAKE_NCCL, 1) == 0);
    for (const int device : {0, 1}) gpus.push_back(cuda::make_backend({.device = device}));
  }
  ~TwoGpus() {
    gpus.clear();
    emulator::reset();
    emulator::set_device_count(1);
  }
  TwoGpus(const TwoGpus&) = delete;
  TwoGpus& operator=(const TwoGpus&) = delete;

  std::vector<std::unique_ptr<tensor::Backend>> gpus;
};

/// An outcome that is told once.
class Told {
 public:
  [[nodiscard]] std::function<void(std::exception_ptr)> handler() {
    return [promise = promise_](const std::exception_ptr& failure) {
      failure ? promise->set_exception(failure) : promise->set_value();
    };
  }
  void wait() { outcome_.get(); }

 private:
  std::shared_ptr<std::promise<void>> promise_ = std::make_shared<std::promise<void>>();
  std::future<void> outcome_ = promise_->get_future();
};

/// One end, with what it is told.
struct End {
  End(tensor::Backend& gpu, bool sending, std::vector<std::byte> id, std::chrono::milliseconds open_timeout = 30s) {
    tensor::ChannelOptions options;
    options.sending = sending;
    options.id = std::move(id);
    options.name = "stage 0 -> stage 1";
    options.open_timeout = open_timeout;
    options.opened = opened.handler();
    options.lost = lost.handler();
    channel = gpu.open_channel(std::move(options));
  }
  Told opened;
  Told lost;
  std::unique_ptr<tensor::DeviceChannel> channel;
};

struct Pair {
  explicit Pair(const TwoGpus& both, std::vector<std::byte> id)
      : sender(*both.gpus[0], true, id), receiver(*both.gpus[1], false, id) {
    sender.opened.wait();
    receiver.opened.wait();
  }
  explicit Pair(const TwoGpus& both) : Pair(both, both.gpus[0]->make_channel_id()) {}
  End sender;
  End receiver;
};

std::vector<std::byte> bytes_of(size_t count, size_t seed) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + seed * 31);
  return bytes;
}

std::span<std::byte> piece(const tensor::Buffer& buffer, size_t begin, size_t size) {
  return {buffer.data() + begin, size};
}

void put(tensor::Backend& gpu, const std::vector<std::byte>& bytes, std::byte* to) {
  gpu.run_and_wait([&] { gpu.copy_in(bytes, to); });
}

std::vector<std::byte> get(tensor::Backend& gpu, std::span<const std::byte> from) {
  std::vector<std::byte> found(from.size());
  gpu.run_and_wait([&] { gpu.copy_out(from.data(), found); });
  return found;
}

/// Receives into `memory` and submits work that copies it on, before anything is sent.
struct EarlyWork {
  EarlyWork(End& end, tensor::Backend& gpu, std::span<std::byte> memory) : copy(gpu.allocate(memory.size())) {
    Told launched;
    end.channel->receive(memory, launched.handler(), arrived.handler());
    launched.wait();
    gpu.submit([&gpu, memory, this] { gpu.copy_in(memory, copy.data()); }, complete.handler());
  }
  tensor::Buffer copy;
  Told arrived;
  Told complete;
};

}  // namespace

TEST_CASE("what is sent arrives in order, and work that was submitted before comes after it") {
  const TwoGpus both;
  for (const uint64_t seed : {0, 1, 2}) {
    CAPTURE(seed);
    if (seed > 0) emulator::delay_randomly(seed, 200us);
    Pair pair(both);
    constexpr size_t kSize = 1000;
    constexpr size_t kCount = 6;
    const tensor::Buffer from = both.gpus[0]->allocate(kCount * kSize);
    const tensor::Buffer into = both.gpus[1]->allocate(kCount * kSize);
    std::vector<std::unique_ptr<EarlyWork>> work;
    std::vector<Told> sent(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      put(*both.gpus[0], bytes_of(kSize - i, i), from.data() + i * kSize);
      work.push_back(std::make_unique<EarlyWork>(pair.receiver, *both.gpus[1], piece(into, i * kSize, kSize - i)));
    }
    for (size_t i = 0; i < kCount; ++i) {
      pair.sender.channel->send(piece(from, i * kSize, kSize - i), sent[i].handler());
    }
    for (size_t i = 0; i < kCount; ++i) {
      sent[i].wait();
      work[i]->arrived.wait();
      work[i]->complete.wait();
      REQUIRE(get(*both.gpus[1], piece(work[i]->copy, 0, kSize - i)) == bytes_of(kSize - i, i));
    }
  }
}

TEST_CASE("a transfer makes no thread wait for the device and creates nothing") {
  const TwoGpus both;
  Pair pair(both);
  const tensor::Buffer from = both.gpus[0]->allocate(64);
  const tensor::Buffer into = both.gpus[1]->allocate(64);
  for (int round = 0; round < 20; ++round) {
    if (round == 10) emulator::reset();
    Told launched;
    Told arrived;
    Told sent;
    pair.receiver.channel->receive(piece(into, 0, 64), launched.handler(), arrived.handler());
    pair.sender.channel->send(piece(from, 0, 64), sent.handler());
    launched.wait();
    sent.wait();
    arrived.wait();
  }
  const emulator::Counts counts = emulator::counts();
  REQUIRE(counts.allocations == 0);
  REQUIRE(counts.synchronisations == 0);
  REQUIRE(counts.creations == 0);
}

TEST_CASE("an end that finds no other gives up and says so") {
  const TwoGpus both;
  End sender(*both.gpus[0], true, both.gpus[0]->make_channel_id(), 50ms);
  REQUIRE_THROWS_WITH(sender.opened.wait(), "stage 0 -> stage 1: NCCL: the other end is not there after 50 ms");
  Told sent;
  const tensor::Buffer from = both.gpus[0]->allocate(64);
  sender.channel->send(piece(from, 0, 64), sent.handler());
  REQUIRE_THROWS_WITH(sent.wait(), Catch::Contains("is not there"));

  End receiver(*both.gpus[1], false, std::vector<std::byte>(128));
  REQUIRE_THROWS_WITH(receiver.opened.wait(), "stage 0 -> stage 1: NCCL: the communicator: unhandled system error");
}

TEST_CASE("an end whose peer is gone ends what is under way with NCCL's reason") {
  const TwoGpus both;
  Pair pair(both);
  const tensor::Buffer into = both.gpus[1]->allocate(2000);
  EarlyWork first(pair.receiver, *both.gpus[1], piece(into, 0, 1000));
  EarlyWork second(pair.receiver, *both.gpus[1], piece(into, 1000, 1000));
  pair.sender.channel.reset();
  constexpr const char* kReason =
      "stage 0 -> stage 1: NCCL: the communicator: remote process exited or there was a network error";
  REQUIRE_THROWS_WITH(first.arrived.wait(), kReason);
  REQUIRE_THROWS_WITH(second.arrived.wait(), kReason);
  REQUIRE_THROWS_WITH(pair.receiver.lost.wait(), kReason);
  first.complete.wait();  // on bytes that mean nothing
  second.complete.wait();
  Told launched;
  Told arrived;
  pair.receiver.channel->receive(piece(into, 0, 1000), launched.handler(), arrived.handler());
  REQUIRE_THROWS_WITH(launched.wait(), kReason);
  REQUIRE_THROWS_WITH(arrived.wait(), kReason);
}

TEST_CASE("a peer that stays silent is waited for until the channel is aborted, and the next one takes its place") {
  const TwoGpus both;
  const tensor::Buffer from = both.gpus[0]->allocate(1000);
  const tensor::Buffer into = both.gpus[1]->allocate(1000);
  put(*both.gpus[0], bytes_of(1000, 3), from.data());
  for (const bool aborts_sender : {false, true}) {
    CAPTURE(aborts_sender);
    Pair pair(both);
    Told sent;
    std::optional<EarlyWork> work;
    if (aborts_sender) {
      pair.sender.channel->send(piece(from, 0, 1000), sent.handler());
    } else {
      work.emplace(pair.receiver, *both.gpus[1], piece(into, 0, 1000));
    }
    (aborts_sender ? pair.sender : pair.receiver).channel->abort("the ring has ended");
    if (aborts_sender) {
      REQUIRE_THROWS_WITH(sent.wait(), "the ring has ended");
    } else {
      REQUIRE_THROWS_WITH(work->arrived.wait(), "the ring has ended");
      work->complete.wait();
    }
    Pair next(both);
    EarlyWork again(next.receiver, *both.gpus[1], piece(into, 0, 1000));
    Told sent_again;
    next.sender.channel->send(piece(from, 0, 1000), sent_again.handler());
    again.complete.wait();
    sent_again.wait();
    REQUIRE(get(*both.gpus[1], piece(again.copy, 0, 1000)) == bytes_of(1000, 3));
  }
}

TEST_CASE("a device whose work has failed ends its channels with the device's reason") {
  const TwoGpus both;
  Pair pair(both);
  const tensor::Buffer from = both.gpus[0]->allocate(64);
  const tensor::Buffer into = both.gpus[1]->allocate(64);
  Told launched;
  Told arrived;
  pair.receiver.channel->receive(piece(into, 0, 64), launched.handler(), arrived.handler());
  launched.wait();
  emulator::fail_event(1, false);
  Told sent;
  pair.sender.channel->send(piece(from, 0, 64), sent.handler());
  REQUIRE_THROWS_WITH(sent.wait(), Catch::Contains("an illegal memory access was encountered"));
  REQUIRE_THROWS_WITH(pair.sender.lost.wait(), Catch::Contains("an illegal memory access was encountered"));
}

TEST_CASE("a GPU says what it has to offer as an end of a channel") {
  const TwoGpus both;
  const tensor::ChannelSupport first = both.gpus[0]->channel_support();
  const tensor::ChannelSupport second = both.gpus[1]->channel_support();
  REQUIRE(first.missing.empty());
  REQUIRE(first.protocol.starts_with("NCCL 2."));
  REQUIRE(first.protocol == second.protocol);
  REQUIRE(first.device != second.device);
  const auto without = cuda::make_backend({.channels = false});
  REQUIRE(without->channel_support().missing == "--nccl off");
  REQUIRE(without->channel_support().device == first.device);
}

namespace {

using comm::MessageKind;

asio::awaitable<void> open_sender(async::Runtime& runtime, tensor::Backend& gpu,
                                  std::unique_ptr<comm::LinkSender> hosts, sched::DeviceLinkOptions options,
                                  std::unique_ptr<comm::LinkSender>& opened) {
  opened = co_await sched::open_device_sender(runtime, gpu, std::move(hosts), std::move(options));
}

asio::awaitable<void> exchange(const TwoGpus& both, async::Runtime& runtime) {
  comm::Link hosts = comm::make_in_process_link(runtime, runtime, 4);
  std::unique_ptr<comm::LinkSender> sender;
  std::unique_ptr<comm::LinkReceiver> receiver;
  async::TaskGroup tasks(runtime);
  const sched::DeviceLinkOptions options{Generation(3), "stage 0 -> stage 1"};
  tasks.spawn("sender", open_sender(runtime, *both.gpus[0], std::move(hosts.sender), options, sender));
  receiver = co_await sched::open_device_receiver(runtime, *both.gpus[1], std::move(hosts.receiver), options);
  co_await tasks.join();
  REQUIRE((sender->reads_device() && receiver->fills_device()));

  const tensor::Buffer from = both.gpus[0]->allocate(256);
  const tensor::Buffer into = both.gpus[1]->allocate(256);
  put(*both.gpus[0], bytes_of(256, 9), from.data());
  receiver->post(PlanId(7), piece(into, 0, 256));
  sender->send(MessageKind::kPlan, Generation(3), PlanId(7), bytes_of(5, 1));
  comm::Work sent = sender->send_borrowed(MessageKind::kActivations, Generation(3), PlanId(7), piece(from, 0, 256));
  const comm::Message plan = co_await receiver->receive(MessageKind::kPlan);
  REQUIRE(plan.payload.bytes().size() == 5);
  const comm::Message input = co_await receiver->receive(MessageKind::kActivations);
  REQUIRE((input.plan == PlanId(7) && input.generation == Generation(3)));
  REQUIRE(input.payload.bytes().data() == into.data());
  co_await input.arrival->event.wait();
  REQUIRE(input.arrival->at <= runtime.now());
  co_await sent.commit();
  REQUIRE(get(*both.gpus[1], piece(into, 0, 256)) == bytes_of(256, 9));

  receiver->post(PlanId(8), piece(into, 0, 256));
  const comm::Message next = co_await receiver->receive(MessageKind::kActivations);
  sender->close("stage 0 has ended");
  std::string reason;
  try {
    (void)co_await receiver->receive(MessageKind::kPlan);
  } catch (const ErrorException& ended) {
    reason = ended.what();
  }
  REQUIRE(reason == "stage 0 has ended");
  receiver->close(reason);
  try {
    co_await next.arrival->event.wait();
    reason.clear();
  } catch (const std::exception& ended) {
    reason = ended.what();
  }
  REQUIRE(reason == "stage 0 has ended");
}

}  // namespace

TEST_CASE("a link between devices carries plans through the hosts and activations past them") {
  const TwoGpus both;
  async::IoThread thread("link");
  asio::co_spawn(thread.context(), exchange(both, thread.runtime()), asio::use_future).get();
}
