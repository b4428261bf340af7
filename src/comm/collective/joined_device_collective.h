#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <memory>

#include "async/runtime.h"
#include "comm/tcp_link.h"
#include "tensor/collective.h"

/// Collectives of devices whose ranks are on several nodes. docs/collectives.md is their contract.
namespace millrace::comm {

struct DeviceCollectiveOptions {
  tensor::RankPosition position;
  StageId stage;
  LinkHello facts;     ///< that all ranks agree on; `from` and `to` are ignored
  TcpEndpoint leader;  ///< the listener of rank 0
  TcpLinkOptions sockets;
  size_t max_bytes = 0;                      ///< CollectiveOptions::max_bytes
  std::chrono::milliseconds open_timeout{};  ///< for the devices to find each other
};

/// Opens this rank's end of a group of devices (Backend::open_collective). Rank 0 makes the group's id and gives it to
/// the others, which connect to `listener` of its node. Runs on `runtime`, the listener's; calls that block have a
/// thread of their own, and a cancelled caller waits for them. `backend` outlives the end. Errors: those of
/// connect_lanes() and accept_lanes(); kUnavailable, when the devices do not connect.
[[nodiscard]] asio::awaitable<Result<std::unique_ptr<tensor::Collective>>> join_device_collective(
    async::Runtime& runtime, TcpListener& listener, DeviceCollectiveOptions options, tensor::Backend& backend,
    async::TimePoint deadline);

}  // namespace millrace::comm
