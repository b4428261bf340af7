#include <stdexcept>

#include "cuda/nccl_channel.h"
#include "cuda/nccl_library.h"

namespace millrace::cuda {

tensor::ChannelSupport nccl_support(int device) {
  const auto library = nccl_library();
  if (library.has_error()) return {unique_name(device), "", library.error().message};
  return {unique_name(device), "NCCL " + (*library)->version, ""};
}

std::vector<std::byte> make_nccl_id() {
  const NcclLibrary& nccl = *nccl_library().value();
  ncclUniqueId id;
  const ncclResult_t result = nccl.get_unique_id(&id);
  if (result != ncclSuccess) {
    throw std::runtime_error("NCCL: ncclGetUniqueId: " + describe_nccl(nccl, result, nullptr));
  }
  const auto* begin = reinterpret_cast<const std::byte*>(&id);
  return {begin, begin + sizeof(id)};
}

}  // namespace millrace::cuda
