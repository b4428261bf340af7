#pragma once

#include "comm/collective/tcp_experts.h"
#include "tensor/backend.h"

namespace millrace::test {

/// The exchanges of some rings over loopback, each as in a process of its own. [rings]
using TcpRings = std::vector<std::shared_ptr<comm::TcpExperts>>;

/// Connects the ranks of all rings at all stages.
[[nodiscard]] TcpRings connect_rings(const comm::SharedExperts::Shape& shape,
                                     const comm::TcpExperts::AbortFn& on_abort);

}  // namespace millrace::test
