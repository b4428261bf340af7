#pragma once

#include <cstddef>
#include <memory>

#include "tensor/backend.h"

namespace millrace::cpu {

/// Returns zeroed anonymous memory, page-aligned; from 2 MiB on it requests huge pages. Throws std::runtime_error with
/// the wanted and available bytes when the system refuses.
[[nodiscard]] tensor::Buffer allocate_pages(size_t bytes);
/// Returns such memory for a packed weight, which packed_bytes() counts while it lives.
[[nodiscard]] tensor::Buffer allocate_packed(size_t bytes);

/// Scratch memory, 64-byte aligned, that only grows. `reserve` discards its content.
class Scratch {
 public:
  [[nodiscard]] std::byte* reserve(size_t bytes);
  /// Returns the bytes allocated so far.
  [[nodiscard]] size_t bytes() const { return buffer_.bytes(); }
  template <class T>
  [[nodiscard]] T* reserve_as(size_t count) {
    return reinterpret_cast<T*>(reserve(count * sizeof(T)));
  }

 private:
  tensor::Buffer buffer_;
};

}  // namespace millrace::cpu
