#pragma once

#include <optional>
#include <string>

namespace millrace::bench {

/// What bounds every model on a device, measured on it, per second.
struct DeviceCeilings {
  /// On a GPU of a copy, read and written; on a processor of reading.
  std::optional<double> bytes;
  /// On a GPU of cuBLASLt's product of large matrices in bf16; on a processor of its fastest instructions.
  std::optional<double> operations;
  std::string missing;  ///< why one of them is not known; empty: both are
};

/// Measures GPU 0 and takes 1.4 GB of its memory meanwhile.
[[nodiscard]] DeviceCeilings measure_gpu();
/// Measures `threads` threads of this host.
[[nodiscard]] DeviceCeilings measure_cpu(int threads);

}  // namespace millrace::bench
