#include <cstdlib>

#include "base/log.h"
#include "comm/collective/device_collectives.h"
#include "conformance/rank_group.h"
#include "cuda/cuda_backend.h"
#include "cuda/emulator/fake_runtime.h"

namespace millrace::test {
namespace {

/// Makes ranks that take `gpus` GPUs in turn.
RankGroup make_ranks(int32_t size, int32_t gpus, cuda::RankExchange exchange) {
  REQUIRE(setenv("MILLRACE_NCCL_LIBRARY", MILLRACE_FAKE_NCCL, 1) == 0);
  emulator::set_device_count(8);
  RankGroup group;
  std::vector<tensor::Backend*> backends;
  for (int32_t rank = 0; rank < size; ++rank) {
    group.backends.push_back(cuda::make_backend({.device = rank % gpus,
                                                 .products = cuda::GemmChoice::kMma,
                                                 .rank_exchange = exchange,
                                                 .warn = [](const std::string& text) { log::warn("{}", text); }}));
    backends.push_back(group.backends.back().get());
  }
  group.ends = comm::open_device_collectives("the ranks of stage 0", backends, size_t{1} << 20);
  return group;
}

CollectiveCase copies_over(int32_t gpus) {
  return {.name = fmt::format("copies, {} GPUs", gpus),
          .make = [gpus](int32_t size) { return make_ranks(size, gpus, cuda::RankExchange::kCopies); },
          .adds_integers = false,
          .calls_in_turn = 100};
}

}  // namespace

std::vector<CollectiveCase> collective_cases() {
  return {{.name = "NCCL",
           .make = [](int32_t size) { return make_ranks(size, 8, cuda::RankExchange::kNccl); },
           .compares_calls = false,
           .adds_integers = false,
           .calls_in_turn = 100},
          copies_over(1),
          copies_over(2)};
}

}  // namespace millrace::test
