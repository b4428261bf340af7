#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cpu/isa.h"
#include "tensor/backend.h"
#include "tensor/kv_dtype.h"

namespace millrace::cpu {

/// Options of a CPU backend.
struct CpuOptions {
  /// Threads that compute, including the backend's worker. 0: one per CPU that the process may use.
  int threads = 0;
  /// The dtype of packed weights, GEMM inputs and q: kBF16 or kF32. Sums are always f32.
  tensor::DType compute_dtype = tensor::DType::kBF16;
  /// What KV caches store: q's dtype, or codes of 8 bits. Caches of latents have no codes.
  tensor::KvDType kv_dtype = tensor::KvDType::kAuto;
  /// The instruction set of the kernels; empty: the fastest available. An unavailable one is a programmer error.
  std::optional<Isa> isa;
  /// Thread i runs on CPU pin[i % size]. Empty: threads are not pinned, which is better when other processes run.
  std::vector<int> pin;
};

/// Makes a Backend on this host's processor. It owns a worker thread for submitted work, `threads - 1` helpers for the
/// parallel parts of ops, and one thread per copy direction. Weights may outlive it, and other backends of its
/// kv_format() compute with them too. The destructor finishes submitted work, then joins. Packing and allocation may be
/// called from any thread and use the helpers too. Throws std::runtime_error when memory or threads run short.
[[nodiscard]] std::unique_ptr<tensor::Backend> make_backend(const CpuOptions& options);

/// Returns the bytes of all packed weights of this process. Thread-safe.
[[nodiscard]] uint64_t packed_bytes();

}  // namespace millrace::cpu
