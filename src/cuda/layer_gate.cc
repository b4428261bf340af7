#include "cuda/layer_gate.h"

#include <stdexcept>

#include "base/check.h"
#include "cuda/error.h"

namespace millrace::cuda {

CudaLayerGate::~CudaLayerGate() {
  for (Event& event : opened_) device_.events.give_back(std::move(event));
}

void CudaLayerGate::open(int32_t layer) {
  CHECK(static_cast<size_t>(layer) == opened_.size(), "layer {} is opened after {} others", layer, opened_.size());
  opened_.push_back(device_.events.take());
  opened_.back().record(device_.load);
}

void CudaLayerGate::wait_for(int32_t layer) {
  if (failed_) throw std::runtime_error("copying pages to the device has failed");
  CHECK(static_cast<size_t>(layer) < opened_.size(), "layer {} is passed before its copies are launched", layer);
  check(cudaStreamWaitEvent(device_.compute.get(), opened_[static_cast<size_t>(layer)].get(), 0),
        "cudaStreamWaitEvent");
}

}  // namespace millrace::cuda
