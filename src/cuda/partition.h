#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "base/result.h"

struct CUgreenCtx_st;

namespace millrace::cuda {

/// One of the equal parts of a GPU's multiprocessors (a green context). Kernels of its streams run only there; memory
/// and events belong to the whole GPU. Owned by a backend; outlives its streams.
class Partition {
 public:
  /// Makes part `index` of `count` of GPU `device`, which is current. Error: kUnavailable with the reason why the
  /// driver or GPU cannot be divided so.
  [[nodiscard]] static Result<std::unique_ptr<const Partition>> make(int device, int index, int count);
  ~Partition();
  Partition(const Partition&) = delete;
  Partition& operator=(const Partition&) = delete;

  [[nodiscard]] int multiprocessors() const { return multiprocessors_; }
  /// Returns a stream that does not synchronise with others. Throws std::runtime_error.
  [[nodiscard]] cudaStream_t make_stream(int priority) const;

 private:
  Partition(CUgreenCtx_st* context, int multiprocessors) : context_(context), multiprocessors_(multiprocessors) {}

  CUgreenCtx_st* const context_;
  const int multiprocessors_;
};

}  // namespace millrace::cuda
