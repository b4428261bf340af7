#pragma once

#include <cstdint>

#include "comm/tcp_link.h"

namespace millrace::app {

/// This process among the nodes of a ring, as --nnodes, --node-rank and --dist-init-addr say.
struct ClusterOptions {
  int32_t node_count = 1;
  int32_t node_rank = 0;
  comm::TcpEndpoint address;  ///< where the head's node listens for the others
};

}  // namespace millrace::app
