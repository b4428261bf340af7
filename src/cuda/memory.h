#pragma once

#include "cuda/handles.h"
#include "tensor/backend.h"

namespace millrace::cuda {

/// Memory of device `device`; zeroed when the call returns. Throws when it is short, naming what was wanted and what is
/// left. Waits, as does freeing it.
[[nodiscard]] tensor::Buffer allocate_device(int device, size_t bytes, const Stream& stream);
/// Pinned memory of the host, zeroed; kernels reach it at the same address.
[[nodiscard]] tensor::Buffer allocate_pinned(size_t bytes);

/// Device memory that only grows, at least to twice its size: what it was before stays valid for work in flight. Its
/// content does not survive.
class GrowingBuffer {
 public:
  /// At least `bytes` of zeroed memory if this call grew it; `grown` is then set.
  [[nodiscard]] std::byte* reserve(int device, size_t bytes, const Stream& stream, bool& grown);

 private:
  tensor::Buffer buffer_;
  std::vector<tensor::Buffer> ring_builder_;
};

}  // namespace millrace::cuda
