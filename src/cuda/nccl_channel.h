#pragma once

#include <memory>
#include <vector>

#include "cuda/device.h"
#include "tensor/device_channel.h"

/// Channels between GPUs of different processes, by NCCL. Builds without nccl.h use nccl_absent.cc instead.
namespace millrace::cuda {

/// Returns whether NCCL on this machine can serve a GPU.
[[nodiscard]] tensor::ChannelSupport nccl_support(int device);
/// Returns the id of a new channel.
[[nodiscard]] std::vector<std::byte> make_nccl_id();
/// Opens one end: a communicator of two ranks, sender and receiver, with a stream and a thread of its own. `device`
/// outlives it. Throws std::runtime_error.
[[nodiscard]] std::unique_ptr<tensor::DeviceChannel> open_nccl_channel(Device& device, tensor::ChannelOptions options);

}  // namespace millrace::cuda
