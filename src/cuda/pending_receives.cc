#include "cuda/pending_receives.h"

#include <algorithm>

#include "cuda/error.h"

namespace millrace::cuda {

void PendingReceives::add(std::span<const std::byte> memory, std::shared_ptr<const Event> event) {
  const std::lock_guard lock(mutex_);
  writes_.push_back({memory, std::move(event)});
}

void PendingReceives::remove(const void* memory) {
  const std::lock_guard lock(mutex_);
  std::erase_if(writes_, [memory](const Write& write) { return write.memory.data() == memory; });
}

void PendingReceives::order_after(const void* from, const Stream& stream) {
  const auto* address = static_cast<const std::byte*>(from);
  const std::lock_guard lock(mutex_);
  for (const Write& write : writes_) {
    if (address < write.memory.data() || address >= write.memory.data() + write.memory.size()) continue;
    check(cudaStreamWaitEvent(stream.get(), write.event->get(), 0), "cudaStreamWaitEvent");
  }
}

}  // namespace millrace::cuda
