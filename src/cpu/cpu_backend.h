#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cpu/isa.h"
#include "tensor/backend.h"

namespace millrace::cpu {

struct CpuOptions {
  /// Threads that compute, the backend's worker included; 0: one per CPU that the process may use.
  int threads = 0;
  /// kBF16 or kF32: the dtype of packed weights, inputs of products, q, and the KV cache. Sums are always f32.
  tensor::DType compute_dtype = tensor::DType::kBF16;
  /// The fastest available one when empty. One that is not available is a programmer error.
  std::optional<Isa> isa;
  /// Thread i runs on CPU pin[i % size]; unpinned when empty, which is better beside other load.
  std::vector<int> pin;
};

/// A Backend on this host's processor. It owns one worker thread, on which submitted work runs, `threads - 1`
/// helpers for the parallel parts of ops, and one more thread per direction of copies, which sleeps most of the time;
/// several backends in a process share nothing. The destructor runs what was submitted, then joins. Packing and
/// allocation may be called from any thread and use the helpers too. Throws std::runtime_error when memory is short, or
/// threads are.
[[nodiscard]] std::unique_ptr<tensor::Backend> make_backend(const CpuOptions& options);

}  // namespace millrace::cpu
