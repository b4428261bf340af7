#pragma once

#include <map>
#include <string>

#include "base/ids.h"
#include "tensor/device_channel.h"

namespace millrace::cluster {

/// Returns why the devices of two nodes cannot exchange as ranks of one stage; empty if they can.
[[nodiscard]] std::string rank_obstacle(const tensor::ChannelSupport& one, const tensor::ChannelSupport& other);

/// Decides for each link between nodes whether activations go from device to device or through the hosts. It logs each
/// change of a decision with the reason. Owned by the coordinator, on its thread.
class ChannelSelector {
 public:
  /// Makes a selector. With `required`, a link between two stages that cannot have a channel is an error.
  explicit ChannelSelector(bool required) : required_(required) {}
  /// Returns whether the link to stage `to` from the stage before gets a channel, given what both devices support.
  /// Throws ErrorException (kUnavailable) if it is required and impossible.
  [[nodiscard]] bool choose(StageId to, const tensor::ChannelSupport& sender, const tensor::ChannelSupport& receiver);
  /// Notes that the channel to stage `to` could not be opened: the hosts carry its activations from now on, unless
  /// channels are required.
  void give_up(StageId to, const std::string& reason);
  /// Allows the channel to stage `to` again, since one of its nodes is new.
  void forget(StageId to) { given_up_.erase(to); }

 private:
  const bool required_;
  std::map<StageId, std::string> given_up_;  // with the reason
  std::map<StageId, std::string> logged_;    // the last message about a link
};

}  // namespace millrace::cluster
