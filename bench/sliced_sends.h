#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::bench {

/// What one transfer of a micro-batch's activations between two stages of equal ranks costs.
struct SendFigures {
  size_t link_bytes = 0;  ///< on each link
  double median_us = 0;   ///< until all receiving ranks have whole rows
  double min_us = 0;
  double max_us = 0;
};

/// Sends [rows, cols] f32 over TCP links on loopback, from each of `ranks` ranks to its counterpart. With `sliced` each
/// packs and sends its columns, and the receivers gather them in shared memory; otherwise each sends whole rows. Either
/// way both ends submit work, as a stage does before it sends and after it has received.
[[nodiscard]] SendFigures measure_sends(int32_t ranks, int64_t rows, int64_t cols, bool sliced, size_t count);

}  // namespace millrace::bench
