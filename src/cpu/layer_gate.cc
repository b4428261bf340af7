#include "cpu/layer_gate.h"

#include <stdexcept>

namespace millrace::cpu {
namespace {

constexpr int32_t kFailed = -1;

}  // namespace

void CpuLayerGate::open(int32_t layer) {
  open_count_.store(layer + 1, std::memory_order_release);
  open_count_.notify_all();
}

void CpuLayerGate::fail() {
  open_count_.store(kFailed, std::memory_order_release);
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
