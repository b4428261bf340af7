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

/// Of GPU 0, beside whatever else has memory there. Takes 1.4 GB of it meanwhile.
[[nodiscard]] DeviceCeilings measure_gpu();
/// Of so many threads of this host.
[[nodiscard]] DeviceCeilings measure_cpu(int threads);

}  // namespace millrace::bench
