// Channels between two GPUs by NCCL, over a fake of its library: what arrives, what work that is submitted early sees,
// and how channels end.

#include <optional>
#include <thread>

#include "cuda_backend/two_gpus.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

namespace {

/// Receives into `memory` and submits work that copies it onward, before anything is sent.
struct EarlyWork {
  EarlyWork(End& end, tensor::Backend& gpu, std::span<std::byte> memory) : copy(gpu.allocate(memory.size())) {
    Completion launched;
    end.channel->receive(memory, "a copy", launched.handler(), arrived.handler());
    launched.wait();
    gpu.submit([&gpu, memory, this] { gpu.copy_in(memory, copy.data()); }, complete.handler());
  }
  tensor::Buffer copy;
  Completion arrived;
  Completion complete;
};

}  // namespace

TEST_CASE("transfers arrive in order after earlier submitted work") {
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
    std::vector<Completion> sent(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      put(*both.gpus[0], bytes_of(kSize - i, i), from.data() + i * kSize);
      work.push_back(std::make_unique<EarlyWork>(pair.receiver, *both.gpus[1], piece(into, i * kSize, kSize - i)));
    }
    for (size_t i = 0; i < kCount; ++i) {
      pair.sender.channel->send(piece(from, i * kSize, kSize - i), "x", sent[i].handler());
    }
    for (size_t i = 0; i < kCount; ++i) {
      sent[i].wait();
      work[i]->arrived.wait();
      work[i]->complete.wait();
      REQUIRE(get(*both.gpus[1], piece(work[i]->copy, 0, kSize - i)) == bytes_of(kSize - i, i));
    }
  }
}

TEST_CASE("a transfer blocks no thread and creates nothing") {
  const TwoGpus both;
  Pair pair(both);
  const tensor::Buffer from = both.gpus[0]->allocate(64);
  const tensor::Buffer into = both.gpus[1]->allocate(64);
  for (int round = 0; round < 20; ++round) {
    if (round == 10) emulator::reset();
    Completion launched;
    Completion arrived;
    Completion sent;
    pair.receiver.channel->receive(piece(into, 0, 64), "x", launched.handler(), arrived.handler());
    pair.sender.channel->send(piece(from, 0, 64), "x", sent.handler());
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
  REQUIRE_THROWS_WITH(sender.opened.wait(), "stage 0 -> stage 1: NCCL: stage 1 did not connect within 50 ms");
  Completion sent;
  const tensor::Buffer from = both.gpus[0]->allocate(64);
  sender.channel->send(piece(from, 0, 64), "x", sent.handler());
  REQUIRE_THROWS_WITH(sent.wait(), Catch::Contains("stage 1 did not connect"));

  End receiver(*both.gpus[1], false, std::vector<std::byte>(128));
  REQUIRE_THROWS_WITH(receiver.opened.wait(), "stage 0 -> stage 1: NCCL: the communicator: unhandled system error");
}

TEST_CASE("an end whose peer is gone fails with the reason of NCCL") {
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
  Completion launched;
  Completion arrived;
  pair.receiver.channel->receive(piece(into, 0, 1000), "x", launched.handler(), arrived.handler());
  REQUIRE_THROWS_WITH(launched.wait(), kReason);
  REQUIRE_THROWS_WITH(arrived.wait(), kReason);
}

TEST_CASE("a lost channel reports before its end awaits others") {
  const TwoGpus both;
  Pair ending(both);
  Pair beside(both, 10s);  // or its receive would be waited for for ever
  const tensor::Buffer into = both.gpus[1]->allocate(2000);
  Completion arrived;
  EarlyWork work(beside.receiver, *both.gpus[1], piece(into, 0, 1000));
  ending.receiver.channel->receive(piece(into, 1000, 1000), "x", [](const auto&) {}, arrived.handler());
  ending.sender.channel.reset();
  REQUIRE_THROWS_WITH(ending.receiver.lost.wait(), Catch::Contains("remote process exited"));
  beside.receiver.channel->abort("the ring has ended");
  REQUIRE_THROWS_WITH(work.arrived.wait(), "the ring has ended");
  REQUIRE_THROWS_WITH(arrived.wait(), Catch::Contains("remote process exited"));
  work.complete.wait();
}

TEST_CASE("a silent peer is awaited until abort and then replaced") {
  const TwoGpus both;
  const tensor::Buffer from = both.gpus[0]->allocate(1000);
  const tensor::Buffer into = both.gpus[1]->allocate(1000);
  put(*both.gpus[0], bytes_of(1000, 3), from.data());
  for (const bool aborts_sender : {false, true}) {
    CAPTURE(aborts_sender);
    Pair pair(both);
    Completion sent;
    std::optional<EarlyWork> work;
    if (aborts_sender) {
      pair.sender.channel->send(piece(from, 0, 1000), "x", sent.handler());
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
    Completion sent_again;
    next.sender.channel->send(piece(from, 0, 1000), "x", sent_again.handler());
    again.complete.wait();
    sent_again.wait();
    REQUIRE(get(*both.gpus[1], piece(again.copy, 0, 1000)) == bytes_of(1000, 3));
  }
}

TEST_CASE("a transfer without its peer ends the channel at the deadline") {
  const TwoGpus both;
  const tensor::Buffer from = both.gpus[0]->allocate(1000);
  const tensor::Buffer into = both.gpus[1]->allocate(1000);
  for (const bool receives : {false, true}) {
    CAPTURE(receives);
    Pair pair(both, 80ms);
    End& end = receives ? pair.receiver : pair.sender;
    Completion launched;
    Completion first;
    Completion second;
    // The second one's time begins where the first one's ends, so it is not what is late.
    if (receives) {
      end.channel->receive(piece(into, 0, 600), "the activations of plan 7", launched.handler(), first.handler());
      end.channel->receive(piece(into, 600, 400), "the activations of plan 8", [](const auto&) {}, second.handler());
    } else {
      end.channel->send(piece(from, 0, 600), "the activations of plan 7", first.handler());
      end.channel->send(piece(from, 600, 400), "the activations of plan 8", second.handler());
    }
    const std::string reason =
        receives ? "stage 0 -> stage 1: NCCL: stage 0 has not sent the activations of plan 7 (600 bytes) within 80 ms"
                 : "stage 0 -> stage 1: NCCL: stage 1 has not taken the activations of plan 7 (600 bytes) within 80 ms";
    REQUIRE_THROWS_WITH(first.wait(), reason);
    REQUIRE_THROWS_WITH(second.wait(), reason);
    REQUIRE_THROWS_WITH(end.lost.wait(), reason);
    Pair next(both);  // the devices are as ever
    EarlyWork again(next.receiver, *both.gpus[1], piece(into, 0, 1000));
    Completion sent;
    next.sender.channel->send(piece(from, 0, 1000), "x", sent.handler());
    again.complete.wait();
    sent.wait();
  }
}

TEST_CASE("serial transfers may take longer than one of them may") {
  const TwoGpus both;
  Pair pair(both, 4s);
  const tensor::Buffer from = both.gpus[0]->allocate(64);
  const tensor::Buffer into = both.gpus[1]->allocate(64);
  std::vector<Completion> arrived(5);
  for (Completion& each : arrived)
    pair.receiver.channel->receive(piece(into, 0, 64), "x", [](const auto&) {}, each.handler());
  for (Completion& each : arrived) {
    std::this_thread::sleep_for(900ms);  // all five together: more than the timeout
    Completion sent;
    pair.sender.channel->send(piece(from, 0, 64), "x", sent.handler());
    sent.wait();
    each.wait();
  }
}

TEST_CASE("a failed device ends its channels with its reason") {
  const TwoGpus both;
  Pair pair(both);
  const tensor::Buffer from = both.gpus[0]->allocate(64);
  const tensor::Buffer into = both.gpus[1]->allocate(64);
  Completion launched;
  Completion arrived;
  pair.receiver.channel->receive(piece(into, 0, 64), "x", launched.handler(), arrived.handler());
  launched.wait();
  emulator::fail_event(1, false);
  Completion sent;
  pair.sender.channel->send(piece(from, 0, 64), "x", sent.handler());
  REQUIRE_THROWS_WITH(sent.wait(), Catch::Contains("an illegal memory access was encountered"));
  REQUIRE_THROWS_WITH(pair.sender.lost.wait(), Catch::Contains("an illegal memory access was encountered"));
}

TEST_CASE("a GPU says what it has to offer as an end of a channel") {
  const TwoGpus both;
  const tensor::ChannelSupport first = both.gpus[0]->channel_support();
  const tensor::ChannelSupport second = both.gpus[1]->channel_support();
  REQUIRE(first.unavailable_reason.empty());
  REQUIRE(first.protocol.starts_with("NCCL 2."));
  REQUIRE(first.protocol == second.protocol);
  REQUIRE(first.device != second.device);
  const auto without = cuda::make_backend({.channels = false});
  REQUIRE(without->channel_support().unavailable_reason == "--nccl off");
  REQUIRE(without->channel_support().device == first.device);
}
