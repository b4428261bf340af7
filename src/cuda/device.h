#pragma once

#include <cstdint>
#include <string>

#include "cuda/event_poller.h"
#include "cuda/incoming.h"
#include "cuda/memory.h"
#include "cuda/module.h"

/// What the parts of one backend share. Private to this folder.
namespace millrace::cuda {

/// One backend's place on a GPU: its streams, its scratch, and who tells when work is complete.
struct Device {
  explicit Device(int number);
  /// For the calling thread, before it calls the runtime.
  void make_current() const;

  const int ordinal;
  Stream compute;
  Stream load;    ///< pages from the host
  Stream store;   ///< pages to the host
  Stream set_up;  ///< weights and memory, at start-up
  EventPool events{16};
  GrowingBuffer product_scratch;
  GrowingBuffer attention_scratch;
  GrowingBuffer sample_scratch;
  GrowingBuffer sample_results;
  /// Counts how often memory of the compute stream has moved: graphs of an earlier count read stale addresses.
  uint64_t moves = 0;
  Incoming incoming;  ///< what channels are about to write
  // Last: it is joined before what pending work uses goes away.
  EventPoller poller;

  /// `bytes` of one of the scratches; grows it where that was never asked for before.
  [[nodiscard]] std::byte* scratch(GrowingBuffer& buffer, size_t bytes);
};

/// Module::list_gpus.
[[nodiscard]] Result<std::vector<GpuInfo>> list_gpus();
/// A name that no other GPU has, on any host.
[[nodiscard]] std::string unique_name(int ordinal);
/// "NVIDIA H200, sm_90, 132 SMs", and "sm_90".
[[nodiscard]] std::string describe_device(int ordinal);
[[nodiscard]] std::string architecture(int ordinal);

}  // namespace millrace::cuda
