#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "base/result.h"

struct CUgreenCtx_st;

namespace millrace::cuda {

/// One of the equal parts that a GPU's multiprocessors are divided into (a green context): kernels on its streams run
/// there and nowhere else; memory and events are the whole GPU's. Owned by a backend, outlives its streams.
class Partition {
 public:
  /// Part `index` of `count` of GPU `device`, which is current. Errors (kUnavailable) say why driver or GPU do not
  /// divide so.
  [[nodiscard]] static Result<std::unique_ptr<const Partition>> make(int device, int index, int count);
  ~Partition();
  Partition(const Partition&) = delete;
  Partition& operator=(const Partition&) = delete;

  [[nodiscard]] int multiprocessors() const { return multiprocessors_; }
  /// A stream that waits for no other one. Throws std::runtime_error.
  [[nodiscard]] cudaStream_t make_stream(int priority) const;

 private:
  Partition(CUgreenCtx_st* context, int multiprocessors) : context_(context), multiprocessors_(multiprocessors) {}

  CUgreenCtx_st* const context_;
  const int multiprocessors_;
};

}  // namespace millrace::cuda
