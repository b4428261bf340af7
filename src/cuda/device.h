#pragma once

#include <cstdint>
#include <string>

#include "cuda/event_poller.h"
#include "cuda/pending_receives.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "cuda/module.h"
#include "cuda/partition.h"

/// The state that the parts of one backend share. Private to this folder.
namespace millrace::cuda {

/// The part of a GPU that a backend uses; without a partition, all of it.
struct GpuPart {
  std::unique_ptr<const Partition> partition;
  std::string text;  ///< ", part 1 of 4, 32 SMs", or why there is none; empty when none was requested
};
/// Makes part `part` of `part_count` of the current GPU.
[[nodiscard]] GpuPart make_gpu_part(int ordinal, int part, int part_count);

/// One backend's resources on a GPU: streams, scratch, and the poller of completions.
struct Device {
  explicit Device(const CudaOptions& options);
  /// Makes the device current for the calling thread, before it calls the runtime.
  void make_current() const;

  const int ordinal;
  const GpuPart gpu_part;
  const Stream compute{{.partition = gpu_part.partition.get()}};
  // Page copies use few multiprocessors and must not wait for a GEMM to free some.
  const Stream load{{.urgent = true, .partition = gpu_part.partition.get()}};   ///< pages from the host
  const Stream store{{.urgent = true, .partition = gpu_part.partition.get()}};  ///< pages to the host
  const Stream set_up{{.partition = gpu_part.partition.get()}};                 ///< weights and memory, at start
  const MatrixInstruction products;  ///< of the backend's GEMMs and latent attention
  const bool fp8_products;           ///< see CudaOptions
  EventPool events{16};
  GrowingBuffer gemm_scratch;
  GrowingBuffer spread_scratch;
  GrowingBuffer attention_scratch;
  GrowingBuffer expert_scratch;
  GrowingBuffer sample_scratch;
  GrowingBuffer sample_results;
  /// Counts relocations of the compute stream's memory. Graphs of an earlier count would read stale addresses.
  uint64_t relocations = 0;
  PendingReceives pending_receives;  ///< writes that channels are about to make
  // This member is the last: it is joined before what pending work uses is destroyed.
  EventPoller poller;

  /// Returns `bytes` of a scratch buffer, which grows where reserve() did not provide them.
  [[nodiscard]] std::byte* scratch(GrowingBuffer& buffer, size_t bytes);
};

/// Implements Module::list_gpus.
[[nodiscard]] Result<std::vector<GpuInfo>> list_gpus();
/// Implements Module::free_bytes.
[[nodiscard]] uint64_t free_bytes(int ordinal);
/// Returns a name that no other GPU has, on any host.
[[nodiscard]] std::string unique_name(int ordinal);
/// Returns text such as "NVIDIA H200, sm_90, 132 SMs".
[[nodiscard]] std::string describe_device(int ordinal);
/// Returns text such as "sm_90".
[[nodiscard]] std::string architecture(int ordinal);

}  // namespace millrace::cuda
