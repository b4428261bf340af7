#pragma once

#include <memory>
#include <vector>

#include "cuda/device.h"
#include "tensor/device_channel.h"

/// Channels between GPUs of different processes, by NCCL. Without nccl.h the build has nccl_absent.cc in their place.
namespace millrace::cuda {

/// What NCCL on this machine has to offer for a GPU.
[[nodiscard]] tensor::ChannelSupport nccl_support(int device);
[[nodiscard]] std::vector<std::byte> make_nccl_id();
/// A communicator of two ranks, the sender's and the receiver's, on a stream and with a thread of its own. `device`
/// outlives it. Throws std::runtime_error.
[[nodiscard]] std::unique_ptr<tensor::DeviceChannel> open_nccl_channel(Device& device, tensor::ChannelOptions options);

}  // namespace millrace::cuda
