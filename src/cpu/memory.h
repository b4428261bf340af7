#pragma once

#include <cstddef>
#include <memory>

#include "tensor/backend.h"

namespace millrace::cpu {

/// Zeroed anonymous memory, page-aligned, with huge pages asked for from 2 MiB on. Throws std::runtime_error when the
/// system refuses it, with what was wanted and what there is.
[[nodiscard]] tensor::Buffer allocate_pages(size_t bytes);

/// 64-byte aligned scratch that only grows; its content does not survive `reserve`.
class Scratch {
 public:
  [[nodiscard]] std::byte* reserve(size_t bytes);
  /// What it has taken so far.
  [[nodiscard]] size_t bytes() const { return buffer_.bytes(); }
  template <class T>
  [[nodiscard]] T* reserve_as(size_t count) {
    return reinterpret_cast<T*>(reserve(count * sizeof(T)));
  }

 private:
  tensor::Buffer buffer_;
};

}  // namespace millrace::cpu
