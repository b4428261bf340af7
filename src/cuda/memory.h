#pragma once

#include "cuda/handles.h"
#include "tensor/backend.h"

namespace millrace::cuda {

/// Returns memory of device `device`, zeroed. Throws std::runtime_error with the wanted and available bytes when it is
/// short. Allocating and freeing wait for the device.
[[nodiscard]] tensor::Buffer allocate_device(int device, size_t bytes, const Stream& stream);
/// Returns pinned host memory, zeroed, which kernels reach at the same address.
[[nodiscard]] tensor::Buffer allocate_pinned(size_t bytes);

/// Device memory that only grows, to at least twice its size. The previous memory stays valid for work in flight.
/// Growing discards the content.
class GrowingBuffer {
 public:
  /// Returns at least `bytes`. If this call grew the buffer, the memory is zeroed and `grown` is set.
  [[nodiscard]] std::byte* reserve(int device, size_t bytes, const Stream& stream, bool& grown);

 private:
  tensor::Buffer buffer_;
  std::vector<tensor::Buffer> outgrown_;
};

}  // namespace millrace::cuda
