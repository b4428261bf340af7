#pragma once

#include "cuda/device.h"
#include "tensor/backend.h"

namespace millrace::cuda {

/// An event per layer on the stream of loads. Loads are launched before the work that passes is, both on one thread,
/// so nobody ever waits for a gate on the host.
class CudaLayerGate final : public tensor::LayerGate {
 public:
  explicit CudaLayerGate(Device& device) : device_(device) {}
  ~CudaLayerGate() override;
  void open(int32_t layer) override;
  void fail() override { failed_ = true; }
  void wait_for(int32_t layer) override;

 private:
  Device& device_;
  std::vector<Event> opened_;  // [layers so far]
  bool failed_ = false;
};

}  // namespace millrace::cuda
