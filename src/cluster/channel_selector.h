#pragma once

#include <map>
#include <string>

#include "base/ids.h"
#include "tensor/device_channel.h"

namespace millrace::cluster {

/// Decides, link by link between nodes, whether activations go from device to device or through the hosts, and says in
/// the log which and why, whenever that has changed. Owned by the coordinator.
class ChannelSelector {
 public:
  /// required: a link between two stages that cannot have a channel is an error.
  explicit ChannelSelector(bool required) : required_(required) {}
  /// Of the link to stage `to` from the one before, with what both devices have to offer. Throws ErrorException
  /// (kUnavailable).
  [[nodiscard]] bool choose(StageId to, const tensor::ChannelSupport& sender, const tensor::ChannelSupport& receiver);
  /// The channel to stage `to` was chosen and could not be opened: the hosts carry its activations from now on, unless
  /// channels are required.
  void give_up(StageId to, const std::string& reason);
  /// One of its nodes is new: what was given up may be tried again.
  void forget(StageId to) { given_up_.erase(to); }

 private:
  const bool required_;
  std::map<StageId, std::string> given_up_;  // why
  std::map<StageId, std::string> logged_;    // what the log says of a link
};

}  // namespace millrace::cluster
