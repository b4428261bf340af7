#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "cache/cache_counts.h"
#include "cache/page_pool.h"
#include "cluster/placement.h"
#include "comm/link.h"
#include "comm/ring_experts.h"
#include "model/fingerprint.h"
#include "model/layer_range.h"
#include "sched/stage/stage_config.h"
#include "tensor/device_channel.h"

/// The messages between the coordinator on the head's node and the other nodes, outside of the ring.
namespace millrace::cluster {

inline constexpr uint32_t kProtocolVersion = 13;

/// Node → coordinator, the first message of a connection.
struct Hello {
  uint32_t protocol = kProtocolVersion;
  uint32_t node_rank = 0;
  uint32_t node_count = 0;
  model::Fingerprint config;  ///< of everything in config.json that the forward pass depends on
  uint16_t ring_port = 0;     ///< port for the link from the node before
};

/// Coordinator → node: what to load. A node that has exactly this loaded keeps it.
struct Assignment {
  uint64_t ring_id = 0;  ///< chosen by the head at its start
  uint32_t first_stage = 0;
  uint32_t stage_count = 0;               ///< of the whole ring
  uint32_t first_rank = 0;                ///< of each stage of the node
  uint32_t rank_count = 1;                ///< of each stage, on the node
  std::vector<model::LayerRange> layers;  ///< one range per stage of the node
  sched::StageConfig stage;
  friend bool operator==(const Assignment&, const Assignment&) = default;

  [[nodiscard]] NodePart part() const {
    return {.first_stage = first_stage,
            .stage_count = static_cast<uint32_t>(layers.size()),
            .first_rank = first_rank,
            .rank_count = rank_count};
  }
};

/// Node → coordinator: the weights are loaded.
struct Loaded {
  uint64_t page_capacity = 0;       ///< pages that the node's memory holds now, or those of `pools`
  uint64_t host_page_capacity = 0;  ///< pages that the host tier can have; 0 with `pools`
  uint32_t sequence_capacity = 0;   ///< sequences whose windows and states fit with StageConfig::wanted_pages
  cache::PoolSizes pools;           ///< that the node has already, made for this ring; zeros: none
  uint16_t expert_port = 0;         ///< where other rings reach its ranks; 0: the ring shares no experts
  std::string compute;              ///< dtype, device and instruction set
  tensor::ChannelSupport first;     ///< of the device of its first stage, which receives activations
  tensor::ChannelSupport last;      ///< of the device of its last stage, which sends activations
  model::PageContents contents;     ///< with a store: what the pages of its ranks follow from
};

/// A node as others link with it.
struct JoinedNode {
  std::string host;   ///< empty: the head's node, whose address the others know
  uint16_t port = 0;  ///< for links
  NodePart part;
};

/// Coordinator → node: join epoch `epoch`.
struct JoinRing {
  RingEpoch epoch;
  cache::PoolSizes pages;
  std::vector<JoinedNode> nodes;  ///< of the ring
  comm::ExpertEpoch experts;      ///< where the ring shares experts with others; ranks on the head's host have no host
  bool channel_in = false;        ///< activations arrive over a device channel
  bool channel_out = false;       ///< activations leave over a device channel
  std::string fingerprint;        ///< with a store: of all stages of the ring, bound into every stored page
};

/// Node → coordinator: the node's part of the epoch runs.
struct RingJoined {
  RingEpoch epoch;
};

/// Coordinator → node: end the epoch.
struct Stop {
  RingEpoch epoch;
  std::string reason;
};

/// Node → coordinator: the node's part of the epoch has ended.
struct Stopped {
  RingEpoch epoch;
  std::string reason;
  StageId lost_channel{0};  ///< the channel to this stage could not be opened; 0: none
};

/// Coordinator → node, between epochs: free the page pools, measure the memory, and reply with Loaded.
struct Measure {};

/// Node → coordinator, once a second while there are links: the counters of the node's link ends, without their names.
struct LinkReport {
  std::vector<comm::LinkStats> links;
};

/// Node → coordinator, once a second if there are page stores: the counters of its stages' stores.
struct StoreReport {
  std::vector<cache::StageStoreStats> stores;
};

/// Sent both ways on the connection of a ring in another process: a message of remote/ring_messages.h.
struct RingMessage {
  std::vector<std::byte> body;
};

/// Sent both ways: the sender is alive.
struct Ping {};

/// The last message of a connection, sent both ways: the reason of its end.
struct Goodbye {
  std::string reason;
};

using Message = std::variant<Hello, Assignment, Loaded, JoinRing, RingJoined, Stop, Stopped, Ping, Goodbye, LinkReport,
                             StoreReport, Measure, RingMessage>;

[[nodiscard]] std::vector<std::byte> encode(const Message& message);
/// Returns kData for anything but one whole message.
[[nodiscard]] Result<Message> decode(std::span<const std::byte> bytes);

}  // namespace millrace::cluster
