#include "comm/collective/shared_collective.h"
#include "comm/collective/tcp_group.h"
#include "conformance/rank_group.h"
#include "comm/tcp_support.h"
#include "cpu/cpu_backend.h"

namespace millrace::test {
namespace {

RankGroup make_cpu_ranks(int32_t size) {
  RankGroup group;
  for (int32_t rank = 0; rank < size; ++rank) group.backends.push_back(cpu::make_backend({.threads = 2}));
  return group;
}

RankGroup make_shared(int32_t size) {
  RankGroup group = make_cpu_ranks(size);
  std::vector<tensor::Backend*> backends;
  for (const auto& backend : group.backends) backends.push_back(backend.get());
  group.ends = comm::make_shared_collectives(backends);
  return group;
}

RankGroup make_tcp(int32_t size) {
  RankGroup group = make_cpu_ranks(size);
  group.ends = connect_ranks(group.backends, {.silence = kPatience});
  return group;
}

}  // namespace

std::vector<CollectiveCase> collective_cases() {
  return {{.name = "shared memory", .make = make_shared}, {.name = "TCP", .make = make_tcp}};
}

}  // namespace millrace::test
