#pragma once

#include <cstdint>
#include <vector>

#include "tensor/host_tensor.h"
#include "tensor/sum_shards.h"
#include "weights/stored_weight.h"

namespace millrace::model {

/// Rows of a stored weight as floating point, in memory of its own while they are packed: f32, or bf16 rounded to
/// nearest even.
class DecodedMatrix {
 public:
  /// Decodes the rows on at most `threads` threads; 0: one per processor.
  DecodedMatrix(const weights::StoredWeight& weight, tensor::TermRange rows, bool to_bf16, int32_t threads);
  [[nodiscard]] tensor::HostTensor view() const;

 private:
  std::string name_;
  tensor::Shape shape_;
  std::vector<float> floats_;              // [rows, cols], or empty
  std::vector<tensor::BFloat16> rounded_;  // [rows, cols], or empty
};

}  // namespace millrace::model
