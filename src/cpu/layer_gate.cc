#include "cpu/layer_gate.h"

#include <stdexcept>

namespace millrace::cpu {
namespace {

constexpr int32_t kFailed = -1;

}  // namespace

void CpuLayerGate::open(int32_t layer) {
  set_count(layer + 1);
}

void CpuLayerGate::fail() {
  set_count(kFailed);
}

/// The store is sequentially consistent: libstdc++ then looks for waiters, and a processor may do so before an earlier
/// store is visible to them. They would sleep for good.
void CpuLayerGate::set_count(int32_t count) {
  open_count_.store(count);
  open_count_.notify_all();
}

void CpuLayerGate::wait_for(int32_t layer) {
  for (int32_t count = open_count_.load(std::memory_order_acquire); count <= layer;
       count = open_count_.load(std::memory_order_acquire)) {
    if (count == kFailed) throw std::runtime_error("copying pages to the device has failed");
    open_count_.wait(count, std::memory_order_acquire);
  }
}

}  // namespace millrace::cpu
