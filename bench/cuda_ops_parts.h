#pragma once

#include <vector>

#include "cuda/kernels.h"
#include "cuda_bench.h"

/// The shared parts of bench/cuda_ops.
namespace millrace::bench {

/// The shapes to measure, and the total size of alternating operands.
struct OpsOptions {
  int32_t hidden = 4096;
  int32_t intermediate = 14336;
  int32_t heads = 32;
  int32_t kv_heads = 8;
  int32_t head_dim = 128;
  int32_t layers = 32;  ///< of a page that is copied to the host
  int32_t vocab = 128256;
  int32_t expert_hidden = 2048;
  int32_t expert_intermediate = 768;
  int32_t experts = 128;
  int32_t experts_per_row = 8;
  std::vector<int> rows = {1, 8, 16, 32, 64, 128, 512, 2048};  ///< of GEMMs
  std::vector<int> expert_rows = {1, 4, 16, 64, 512};          ///< of fused MoE
  std::vector<int32_t> sequences = {1, 16, 64, 256};           ///< that decode
  std::vector<int32_t> contexts = {1024, 4096, 32768};         ///< of each sequence
  std::vector<int32_t> prefixes = {0, 6144, 30720};            ///< before the rows of a prompt
  std::vector<int32_t> latent_heads = {16, 128};               ///< of latent attention
  std::vector<int> drawn_rows = {1, 64, 256};                  ///< that are sampled
  int32_t prompt_rows = 2048;
  std::vector<std::string> parts = {"gemm",     "coded",  "experts", "attention", "latents",
                                    "indexers", "states", "rows",    "pages"};
  bool wgmma = true;               ///< also measure wgmma where the device has it
  size_t cold_bytes = kColdBytes;  ///< larger than any cache

  [[nodiscard]] bool has_wgmma() const { return wgmma && cuda::has_wgmma(); }
  /// Returns how many copies of `bytes` must alternate so that no cache holds what a call reads.
  [[nodiscard]] size_t cold_copies(size_t bytes) const { return cold_bytes / bytes + 1; }
};

/// Measures the experts of one layer with rows that choose at random. It compares with two ceilings: reading the chosen
/// weights at `copy_rate` (bytes per second), and a dense GEMM's operations.
void measure_experts(cudaStream_t stream, const OpsOptions& options, double copy_rate);

/// Measures GEMMs with weights of 4 and 8 bits, and compares with cuBLASLt's in bf16.
void measure_coded(cudaStream_t stream, const OpsOptions& options, double copy_rate);

/// Measures latent attention, and compares it with reading the latents at `copy_rate`.
void measure_latents(cudaStream_t stream, const OpsOptions& options, double copy_rate);
void measure_indexers(cudaStream_t stream, const OpsOptions& options, double copy_rate);

/// Measures delta nets, and compares them with reading and writing the states at `copy_rate`.
void measure_states(cudaStream_t stream, const OpsOptions& options, double copy_rate);

/// Measures copies of pages to pinned host memory and back, and one copy of as many bytes.
void measure_pages(cudaStream_t stream, const OpsOptions& options);

}  // namespace millrace::bench
