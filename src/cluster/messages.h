#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "cache/cache_counts.h"
#include "comm/link.h"
#include "model/fingerprint.h"
#include "model/layer_range.h"
#include "sched/stage/stage_config.h"
#include "tensor/device_channel.h"

/// What the coordinator (on the node of the head) and the other nodes say to each other, besides the ring.
namespace millrace::cluster {

inline constexpr uint32_t kProtocolVersion = 7;

/// Node → coordinator, first on a connection.
struct Hello {
  uint32_t protocol = kProtocolVersion;
  uint32_t node_rank = 0;
  uint32_t node_count = 0;
  model::Fingerprint config;  ///< of everything in config.json that the forward pass depends on
  uint16_t ring_port = 0;     ///< where the node takes the link from the node before it
};

/// Coordinator → node: what to load. A node that holds just this already keeps it.
struct Assignment {
  uint64_t ring_id = 0;  ///< chosen by the head at its start
  uint32_t first_stage = 0;
  uint32_t stage_count = 0;               ///< of the whole ring
  std::vector<model::LayerRange> layers;  ///< one range per stage of the node
  sched::StageConfig stage;
  friend bool operator==(const Assignment&, const Assignment&) = default;
};

/// Node → coordinator: the weights are there.
struct Loaded {
  uint64_t page_capacity = 0;       ///< pages that the node's memory holds
  std::string compute;              ///< what its numbers come from: dtype, device, instruction set
  tensor::ChannelSupport first;     ///< of its first stage's device, where activations come in
  tensor::ChannelSupport last;      ///< of its last stage's, where they go out
  std::vector<std::string> stages;  ///< with a store: per stage, what the content of its pages follows from
};

/// Pages of each stage, the same in every epoch of one head.
struct PoolSizes {
  uint32_t device = 0;
  uint32_t host = 0;
  friend bool operator==(const PoolSizes&, const PoolSizes&) = default;
};

/// Coordinator → node: join epoch `epoch`.
struct JoinRing {
  RingEpoch epoch;
  PoolSizes pages;
  std::string next_host;  ///< where the node's last stage connects to
  uint16_t next_port = 0;
  bool channel_in = false;   ///< activations come over a channel from device to device
  bool channel_out = false;  ///< and go so
  std::string fingerprint;   ///< with a store: of all stages of the ring, bound into every stored page
};

/// Node → coordinator: its part of the epoch runs.
struct RingJoined {
  RingEpoch epoch;
};

/// Coordinator → node: end the epoch. Node → coordinator: its part has ended, and why.
struct Stop {
  RingEpoch epoch;
  std::string reason;
};
struct Stopped {
  RingEpoch epoch;
  std::string reason;
  StageId lost_channel{0};  ///< the channel to this stage could not be opened; 0: none
};

/// Node → coordinator, once a second while there are any: the link ends on the node; names stay behind.
struct LinkReport {
  std::vector<comm::LinkStats> links;
};

/// Node → coordinator, as often: what the page stores of its stages count, if there are any.
struct StoreReport {
  std::vector<cache::StageStoreStats> stores;
};

/// Both ways: the sender lives.
struct Ping {};

/// Either way, last on a connection: why.
struct Goodbye {
  std::string reason;
};

using Message = std::variant<Hello, Assignment, Loaded, JoinRing, RingJoined, Stop, Stopped, Ping, Goodbye, LinkReport,
                             StoreReport>;

[[nodiscard]] std::vector<std::byte> encode(const Message& message);
/// kData for anything but one whole message.
[[nodiscard]] Result<Message> decode(std::span<const std::byte> bytes);

}  // namespace millrace::cluster
