#pragma once

#include "conformance/harness.h"

namespace millrace::test {

/// Returns x (bf16) [rows, in] times a weight: the sums in f32 or, with `gate_up`, the gated features.
inline Values multiply(tensor::Backend& backend, const tensor::PackedWeight& weight, bool gate_up, const Values& x) {
  const auto rows = static_cast<int64_t>(x.size()) / weight.in_features();
  Values result;
  backend.run_and_wait([&] {
    const DeviceMatrix left = make_matrix(backend, tensor::DType::kBF16, rows, weight.in_features());
    const DeviceMatrix out =
        make_matrix(backend, gate_up ? tensor::DType::kBF16 : tensor::DType::kF32, rows, weight.out_features());
    upload(backend, x, left);
    if (gate_up) {
      backend.matmul_silu_mul(left.matrix, weight, out.matrix);
    } else {
      backend.matmul(left.matrix, weight, nullptr, out.matrix);
    }
    result = download(backend, out.matrix);
  });
  return result;
}

}  // namespace millrace::test
