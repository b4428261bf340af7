#include "cluster/channel_selector.h"

#include "base/log.h"
#include "base/result.h"

namespace millrace::cluster {
namespace {

/// Returns why there can be no channel between two devices; empty if there can.
std::string channel_obstacle(const tensor::ChannelSupport& sender, const tensor::ChannelSupport& receiver) {
  if (sender.device.empty()) return "the sender computes in memory of its host";
  if (receiver.device.empty()) return "the receiver computes in memory of its host";
  if (!sender.unavailable_reason.empty()) return "at the sender, " + sender.unavailable_reason;
  if (!receiver.unavailable_reason.empty()) return "at the receiver, " + receiver.unavailable_reason;
  if (sender.protocol != receiver.protocol) {
    return fmt::format("the sender has {}, the receiver {}", sender.protocol, receiver.protocol);
  }
  if (sender.device == receiver.device) return fmt::format("both stages are on one device, {}", sender.device);
  return {};
}

}  // namespace

std::string rank_obstacle(const tensor::ChannelSupport& one, const tensor::ChannelSupport& other) {
  if (one.device.empty() && other.device.empty()) return {};  // hosts exchange over TCP
  if (one.device.empty() != other.device.empty()) return "one computes on a GPU, the other in memory of its host";
  for (const tensor::ChannelSupport* each : {&one, &other}) {
    if (!each->unavailable_reason.empty()) return each->unavailable_reason;
  }
  if (one.protocol != other.protocol) return fmt::format("one has {}, the other {}", one.protocol, other.protocol);
  if (one.device == other.device) return fmt::format("both have one device, {}", one.device);
  return {};
}

bool ChannelSelector::choose(StageId to, const tensor::ChannelSupport& sender, const tensor::ChannelSupport& receiver) {
  const bool expected = !sender.device.empty() || !receiver.device.empty();
  if (!expected && !required_) return false;
  std::string obstacle = channel_obstacle(sender, receiver);
  if (const auto found = given_up_.find(to); obstacle.empty() && found != given_up_.end()) {
    obstacle = fmt::format("{} is present and cannot connect: {}", sender.protocol, found->second);
  }
  std::string message =
      fmt::format("activations from stage {} to stage {} go {}", to.value() - 1, to.value(),
                  obstacle.empty() ? "from device to device, by " + sender.protocol : "through the hosts: " + obstacle);
  if (required_ && !obstacle.empty()) {
    throw ErrorException(make_error(ErrorCode::kUnavailable, "--nccl on: {}", message));
  }
  std::string& before = logged_[to];
  if (before != message) log::info("{}", message);
  before = std::move(message);
  return obstacle.empty();
}

void ChannelSelector::give_up(StageId to, const std::string& reason) {
  if (!required_) given_up_.emplace(to, reason);
}

}  // namespace millrace::cluster
