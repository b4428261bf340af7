#pragma once

#include "cuda/device.h"
#include "tensor/backend.h"

namespace millrace::cuda {

/// One event per layer on the stream of loads. Loads are launched before the work that waits is submitted, so that the
/// host never waits for a gate.
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
