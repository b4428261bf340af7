#pragma once

#include "conformance/harness.h"

namespace millrace::test {

/// Returns x (compute) [rows, in] times a weight: the sums in f32 or, with `gate_up`, the gated features (compute).
inline Values multiply(tensor::Backend& backend, const tensor::PackedWeight& weight, bool gate_up, const Values& x) {
  const auto rows = static_cast<int64_t>(x.size()) / weight.in_features();
  Values result;
  backend.run_and_wait([&] {
    const DeviceMatrix left = make_matrix(backend, backend.compute_dtype(), rows, weight.in_features());
    const tensor::DType dtype = gate_up ? backend.compute_dtype() : tensor::DType::kF32;
    const DeviceMatrix out = make_matrix(backend, dtype, rows, weight.out_features());
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
