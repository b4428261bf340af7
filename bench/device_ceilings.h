#pragma once

#include <optional>
#include <string>

namespace millrace::bench {

/// The ceilings of a device for every model, measured, per second.
struct DeviceCeilings {
  /// Bytes: on a GPU of a copy, read and written; on a processor of reads.
  std::optional<double> bytes;
  /// Operations: on a GPU of cuBLASLt's large bf16 GEMM; on a processor of its fastest instructions.
  std::optional<double> operations;
  std::string missing;  ///< why a figure is unknown; empty: both are known
};

/// Measures GPU 0, which may have other users. It takes 1.4 GB of device memory for the time.
[[nodiscard]] DeviceCeilings measure_gpu();
/// Measures `threads` threads of this host.
[[nodiscard]] DeviceCeilings measure_cpu(int threads);

}  // namespace millrace::bench
