#pragma once

#include <memory>
#include <vector>

#include "comm/collective/tcp_collective.h"
#include "conformance/rank_group.h"

namespace millrace::test {

/// Connects one rank per backend over loopback. `options` gives what is not particular to a rank.
[[nodiscard]] std::vector<std::unique_ptr<tensor::Collective>> connect_ranks(
    const std::vector<std::unique_ptr<tensor::Backend>>& backends, comm::TcpCollectiveOptions options);

}  // namespace millrace::test
