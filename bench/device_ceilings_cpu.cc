#include <algorithm>

#include "cpu_bench.h"
#include "device_ceilings.h"

namespace millrace::bench {

DeviceCeilings measure_cpu(int threads) {
  constexpr int kRuns = 3;
  const Ceilings ceilings = measure_ceilings(threads, kRuns);
  const double fastest = std::max({ceilings.fma_gflops, ceilings.bf16_gflops, ceilings.tile_gflops});
  return {.bytes = ceilings.read_gb_s * 1e9, .operations = fastest * 1e9, .missing = {}};
}

}  // namespace millrace::bench
