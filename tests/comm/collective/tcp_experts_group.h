#pragma once

#include "comm/collective/tcp_experts.h"
#include "tensor/backend.h"

namespace millrace::test {

/// The exchanges of some rings over loopback, as in processes of their own: one per ring, or one per stage and rank.
/// [rings] or [rings · stages · ranks]
using TcpRings = std::vector<std::shared_ptr<comm::TcpExperts>>;

/// Connects the ranks of all rings at all stages. `divided`: each rank is in a process of its own.
[[nodiscard]] TcpRings connect_rings(const comm::SharedExperts::Shape& shape, const comm::TcpExperts::AbortFn& on_abort,
                                     bool divided = false);

}  // namespace millrace::test
