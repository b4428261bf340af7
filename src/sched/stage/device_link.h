#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "async/runtime.h"
#include "comm/link.h"
#include "tensor/device_channel.h"

namespace millrace::tensor {
class Backend;
}

/// Links whose activations go from device to device over a channel. All other messages go over a link between the
/// hosts, which is opened before the channel and ends with it. The sender makes the channel's id and sends it as the
/// first activations.
namespace millrace::sched {

struct DeviceLinkOptions {
  RingEpoch epoch;
  StageId from;
  StageId to;
  std::chrono::milliseconds open_timeout{30'000};
  std::chrono::milliseconds transfer_timeout{60'000};  ///< tensor::ChannelOptions
};

/// Opens one end of a channel, and returns when both ends are there. Runs on the Runtime of the link's end, which
/// outlives the result, as does `backend`. Throws std::exception when the host link ends or the channel fails.
[[nodiscard]] asio::awaitable<std::unique_ptr<comm::LinkSender>> open_device_sender(
    async::Runtime& runtime, tensor::Backend& backend, std::unique_ptr<comm::LinkSender> host_link,
    DeviceLinkOptions options);
[[nodiscard]] asio::awaitable<std::unique_ptr<comm::LinkReceiver>> open_device_receiver(
    async::Runtime& runtime, tensor::Backend& backend, std::unique_ptr<comm::LinkReceiver> host_link,
    DeviceLinkOptions options);

}  // namespace millrace::sched
