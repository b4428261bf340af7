#pragma once

#include <cstdint>
#include <optional>

#include "comm/tcp_link.h"

namespace millrace::app {

/// This process among those that have the rings of one front (--dp-size-local, --dp-rank, --dp-address).
struct RingPlacement {
  int32_t local = 0;              ///< rings in the front's process; 0: all of them
  std::optional<int32_t> number;  ///< of the ring of this process, which then is not the front
  comm::TcpEndpoint front;        ///< where the front listens for the other rings
};

/// This process among the nodes of a ring, as --nnodes, --node-rank and --dist-init-addr say.
struct ClusterOptions {
  int32_t node_count = 1;
  int32_t node_rank = 0;
  comm::TcpEndpoint address;  ///< where the head's node listens for the others
  RingPlacement rings;
};

}  // namespace millrace::app
