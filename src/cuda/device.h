#pragma once

#include <cstdint>
#include <string>

#include "cuda/event_poller.h"
#include "cuda/pending_receives.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "cuda/module.h"
#include "cuda/partition.h"

/// What the parts of one backend share. Private to this folder.
namespace millrace::cuda {

/// Which part of a GPU a backend has; without a partition, all of it.
struct GpuPart {
  std::unique_ptr<const Partition> partition;
  std::string text;  ///< ", part 1 of 4, 32 SMs", or why there is none; empty where none was asked for
};
/// Part `part` of `part_count` of a GPU that is current.
[[nodiscard]] GpuPart make_gpu_part(int ordinal, int part, int part_count);

/// One backend's place on a GPU: its streams, its scratch, and who tells when work is complete.
struct Device {
  explicit Device(const CudaOptions& options);
  /// For the calling thread, before it calls the runtime.
  void make_current() const;

  const int ordinal;
  const GpuPart gpu_part;
  const Stream compute{{.partition = gpu_part.partition.get()}};
  // Copies of pages take few multiprocessors and shall not wait until a product leaves some.
  const Stream load{{.urgent = true, .partition = gpu_part.partition.get()}};   ///< pages from the host
  const Stream store{{.urgent = true, .partition = gpu_part.partition.get()}};  ///< pages to the host
  const Stream set_up{{.partition = gpu_part.partition.get()}};                 ///< weights and memory, at start-up
  const MatrixInstruction products;                                             ///< what all of the backend's go by
  EventPool events{16};
  GrowingBuffer gemm_scratch;
  GrowingBuffer attention_scratch;
  GrowingBuffer expert_scratch;
  GrowingBuffer sample_scratch;
  GrowingBuffer sample_results;
  /// Counts how often memory of the compute stream has moved: graphs of an earlier count read stale addresses.
  uint64_t relocations = 0;
  PendingReceives pending_receives;  ///< what channels are about to write
  // Last: it is joined before what pending work uses goes away.
  EventPoller poller;

  /// `bytes` of one of the scratches; grows it where that was never asked for before.
  [[nodiscard]] std::byte* scratch(GrowingBuffer& buffer, size_t bytes);
};

/// Module's.
[[nodiscard]] Result<std::vector<GpuInfo>> list_gpus();
[[nodiscard]] uint64_t free_bytes(int ordinal);
/// A name that no other GPU has, on any host.
[[nodiscard]] std::string unique_name(int ordinal);
/// "NVIDIA H200, sm_90, 132 SMs", and "sm_90".
[[nodiscard]] std::string describe_device(int ordinal);
[[nodiscard]] std::string architecture(int ordinal);

}  // namespace millrace::cuda
