#include <cstdlib>
#include <thread>

#include "base/log.h"
#include "conformance/rank_group.h"
#include "cuda/cuda_backend.h"
#include "cuda/emulator/fake_runtime.h"

namespace millrace::test {
namespace {

RankGroup make_gpus(int32_t size) {
  REQUIRE(setenv("MILLRACE_NCCL_LIBRARY", MILLRACE_FAKE_NCCL, 1) == 0);
  emulator::set_device_count(8);
  RankGroup group;
  for (int32_t rank = 0; rank < size; ++rank) {
    group.backends.push_back(cuda::make_backend({.device = rank,
                                                 .products = cuda::GemmChoice::kMma,
                                                 .warn = [](const std::string& text) { log::warn("{}", text); }}));
  }
  group.ends.resize(group.backends.size());
  const auto id = group.backends[0]->make_channel_id();
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&group, &id, rank, size] {
      const auto at = static_cast<size_t>(rank);
      group.ends[at] = group.backends[at]->open_collective(
          {.position = {rank, size}, .id = id, .name = "the ranks of stage 0", .max_bytes = size_t{1} << 20});
    });
  }
  for (std::thread& each : threads) each.join();
  return group;
}

}  // namespace

std::vector<CollectiveCase> collective_cases() {
  return {{.name = "NCCL",
           .make = make_gpus,
           .compares_calls = false,
           .waits_in_calls = false,
           .adds_integers = false,
           .calls_in_turn = 100}};
}

}  // namespace millrace::test
