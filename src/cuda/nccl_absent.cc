#include <stdexcept>

#include "cuda/nccl_channel.h"
#include "cuda/nccl_collective.h"

namespace millrace::cuda {
namespace {

constexpr const char* kReason = "this millrace was built without nccl.h";

}  // namespace

tensor::ChannelSupport nccl_support(int device) {
  return {unique_name(device), "", kReason};
}

std::vector<std::byte> make_nccl_id() {
  throw std::runtime_error(kReason);
}

std::unique_ptr<tensor::DeviceChannel> open_nccl_channel(Device&, tensor::ChannelOptions) {
  throw std::runtime_error(kReason);
}

std::unique_ptr<tensor::Collective> open_nccl_collective(Device&, const Submissions&,
                                                         const tensor::CollectiveOptions&) {
  throw std::runtime_error(kReason);
}

}  // namespace millrace::cuda
