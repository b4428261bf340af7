#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/collective/tcp_collective.h"
#include "tensor/collective.h"

/// The ranks of a stage on this machine, for measurements.
namespace millrace::bench {

struct BenchRanks {
  std::vector<std::unique_ptr<tensor::Backend>> backends;
  std::vector<std::unique_ptr<tensor::Collective>> ends;
};

/// Makes CPU ranks of `threads` threads each that meet in shared memory.
[[nodiscard]] BenchRanks make_shared_ranks(int32_t ranks, int threads);
/// Makes CPU ranks that are connected over loopback.
[[nodiscard]] BenchRanks make_tcp_ranks(int32_t ranks, int threads, tensor::DType reduce_dtype);
/// Runs `work(rank)` on the backends of all ranks at once and waits for all.
void run_on_ranks(const BenchRanks& ranks, const std::function<void(int32_t rank)>& work);

}  // namespace millrace::bench
