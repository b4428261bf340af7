#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <memory>
#include <vector>

#include "async/runtime.h"
#include "comm/tcp_link.h"
#include "tensor/collective.h"

/// Collectives between ranks on several nodes whose backends compute in host memory. docs/collectives.md is their
/// contract.
namespace millrace::comm {

struct TcpCollectiveOptions {
  tensor::RankPosition position;
  StageId stage;
  /// The facts that all ranks agree on; `from` and `to` are ignored.
  LinkHello facts;
  /// The listeners of the stage's ranks, by rank.
  std::vector<TcpEndpoint> endpoints;
  TcpLinkOptions sockets;
  /// Longest time in which a peer may send and take nothing while this rank waits for it.
  std::chrono::milliseconds silence{1500};
  /// The dtype in which sums travel. kBF16 halves the traffic: all ranks still agree on the bits, which then depend on
  /// the number of ranks.
  tensor::DType reduce_dtype = tensor::DType::kF32;
};

/// Connects this rank with the ranks that it exchanges with, at most three. A pair's lower rank accepts on `listener`.
/// Runs on `runtime`, the listener's; the end is used on the worker thread of `backend`, which outlives it. Errors are
/// those of connect_lanes() and accept_lanes().
[[nodiscard]] asio::awaitable<Result<std::unique_ptr<tensor::Collective>>> connect_tcp_collective(
    async::Runtime& runtime, TcpListener& listener, TcpCollectiveOptions options, tensor::Backend& backend,
    async::TimePoint deadline);

}  // namespace millrace::comm
