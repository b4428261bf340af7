#pragma once

#include <atomic>

#include "tensor/backend.h"

namespace millrace::cpu {

/// Counts the layers that the copy stream's worker has copied. Waiters sleep until the count suffices.
class CpuLayerGate final : public tensor::LayerGate {
 public:
  void open(int32_t layer) override;
  void fail() override;
  void wait_for(int32_t layer) override;

 private:
  void set_count(int32_t count);

  std::atomic<int32_t> open_count_{0};
};

}  // namespace millrace::cpu
