#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/kernels.h"

/// Packed weights as the plain loops read them.
namespace millrace::cuda {

/// The rows of a packed weight in bf16. Gate and up features alternate. Weights of 4 and 8 bits are decoded one by one
/// from the layout of cuda/weight_layout.h, with code that the kernels do not share.
class PlainWeight {
 public:
  explicit PlainWeight(const DeviceWeight& weight);
  [[nodiscard]] const uint16_t* row(size_t feature) const { return rows_ + feature * inputs_; }
  /// Returns the bytes of a packed weight.
  [[nodiscard]] static size_t bytes(const DeviceWeight& weight);

 private:
  std::vector<uint16_t> decoded_;  // [features, inputs]; empty where the weight is in bf16
  const uint16_t* rows_;
  size_t inputs_;
};

}  // namespace millrace::cuda
