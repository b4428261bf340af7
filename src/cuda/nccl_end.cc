#include "cuda/nccl_end.h"

#include <cstring>
#include <utility>

#include "base/check.h"

namespace millrace::cuda {
namespace {

constexpr int kSender = 0;
constexpr int kReceiver = 1;
constexpr int kRanks = 2;

}  // namespace

void NcclEnd::accept(const char* what, ncclResult_t result) const {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw NcclFailure(fmt::format("NCCL: {}: {}", what, describe_nccl(nccl_, result, comm_)));
}

void NcclEnd::begin(std::span<const std::byte> bytes) {
  ncclUniqueId id;
  CHECK(bytes.size() == sizeof(id), "a channel's id of {} bytes", bytes.size());
  std::memcpy(&id, bytes.data(), sizeof(id));
  comm_ = begin_communicator(nccl_, id, sending_ ? kSender : kReceiver, kRanks);
}

void NcclEnd::transfer(std::span<std::byte> memory) {
  if (sending_) {
    accept("ncclSend", nccl_.send(memory.data(), memory.size(), ncclChar, kReceiver, comm_, stream_.get()));
  } else {
    accept("ncclRecv", nccl_.recv(memory.data(), memory.size(), ncclChar, kSender, comm_, stream_.get()));
  }
}

bool NcclEnd::settled() const {
  ncclResult_t state = ncclSuccess;
  accept("ncclCommGetAsyncError", nccl_.comm_get_async_error(comm_, &state));
  accept("the communicator", state);
  return state == ncclSuccess;
}

void NcclEnd::abort() noexcept {
  if (comm_ == nullptr) return;
  (void)nccl_.comm_abort(std::exchange(comm_, nullptr));
  (void)cudaStreamSynchronize(stream_.get());
}

}  // namespace millrace::cuda
