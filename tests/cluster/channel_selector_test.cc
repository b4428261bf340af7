#include "cluster/channel_selector.h"

#include <catch2/catch.hpp>

#include "base/result.h"

using namespace millrace;
using namespace millrace::cluster;
using tensor::ChannelSupport;

TEST_CASE("a channel needs two devices and one protocol or hosts carry") {
  const ChannelSupport first{"GPU-1", "NCCL 2.28.9", ""};
  const ChannelSupport second{"GPU-2", "NCCL 2.28.9", ""};
  const ChannelSupport older{"GPU-3", "NCCL 2.21.5", ""};
  const ChannelSupport without{"GPU-4", "", "--nccl off"};
  const ChannelSupport host;
  ChannelSelector choice(false);
  REQUIRE(choice.choose(StageId(1), first, second));
  REQUIRE_FALSE(choice.choose(StageId(1), first, first));
  REQUIRE_FALSE(choice.choose(StageId(1), first, older));
  REQUIRE_FALSE(choice.choose(StageId(1), first, without));
  REQUIRE_FALSE(choice.choose(StageId(1), without, first));
  REQUIRE_FALSE(choice.choose(StageId(1), host, first));
  REQUIRE_FALSE(choice.choose(StageId(1), first, host));
  REQUIRE_FALSE(choice.choose(StageId(1), host, host));
}

TEST_CASE("a failed channel is not chosen again before a node is new") {
  const ChannelSupport first{"GPU-1", "NCCL 2.28.9", ""};
  const ChannelSupport second{"GPU-2", "NCCL 2.28.9", ""};
  ChannelSelector choice(false);
  REQUIRE(choice.choose(StageId(1), first, second));
  choice.give_up(StageId(1), "the network lets nobody through");
  REQUIRE_FALSE(choice.choose(StageId(1), first, second));
  REQUIRE(choice.choose(StageId(2), first, second));
  choice.forget(StageId(1));
  REQUIRE(choice.choose(StageId(1), first, second));
  ChannelSelector required(true);
  required.give_up(StageId(1), "the network lets nobody through");
  REQUIRE(required.choose(StageId(1), first, second));
}

TEST_CASE("where channels are required an obstacle is a named error") {
  const ChannelSupport first{"GPU-1", "NCCL 2.28.9", ""};
  const ChannelSupport second{"GPU-2", "NCCL 2.28.9", ""};
  ChannelSelector choice(true);
  REQUIRE(choice.choose(StageId(3), first, second));
  const auto obstacle = [&choice](const ChannelSupport& from, const ChannelSupport& to) {
    try {
      (void)choice.choose(StageId(3), from, to);
    } catch (const ErrorException& refused) {
      return std::string(refused.what());
    }
    return std::string();
  };
  const std::string prefix = "--nccl on: activations from stage 2 to stage 3 go through the hosts: ";
  REQUIRE(obstacle(first, first) == prefix + "both stages are on one device, GPU-1");
  REQUIRE(obstacle(first, {"GPU-2", "NCCL 2.21.5", ""}) ==
          prefix + "the sender has NCCL 2.28.9, the receiver NCCL 2.21.5");
  REQUIRE(obstacle({"GPU-1", "", "no library"}, second) == prefix + "at the sender, no library");
  REQUIRE(obstacle(first, {"GPU-2", "", "no library"}) == prefix + "at the receiver, no library");
  REQUIRE(obstacle({}, second) == prefix + "the sender computes in memory of its host");
}
