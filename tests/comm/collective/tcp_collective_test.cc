// What is particular to collectives over TCP: rounded sums, silent and lost peers, and who may connect.
#include "comm/collective/tcp_collective.h"

#include <cmath>

#include "async/task_group.h"
#include "comm/collective/tcp_group.h"
#include "comm/tcp_support.h"
#include "cpu/cpu_backend.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;
using tensor::DType;

namespace {

RankGroup make_ranks(int32_t size, comm::TcpCollectiveOptions options) {
  RankGroup group;
  for (int32_t rank = 0; rank < size; ++rank) group.backends.push_back(cpu::make_backend({.threads = 1}));
  group.ends = connect_ranks(group.backends, std::move(options));
  return group;
}

}  // namespace

TEST_CASE("TCP collectives: sums rounded to bf16 agree on all ranks") {
  Random random(test_seed());
  INFO("MILLRACE_TEST_SEED=" << test_seed());
  for (const int32_t size : {2, 4, 8}) {
    RankGroup group = make_ranks(size, {.silence = kPatience, .reduce_dtype = DType::kBF16});
    for (const int64_t cols : {1, 33, 40'000}) {
      CAPTURE(size, cols);
      std::vector<DeviceMatrix> matrices;
      std::vector<Values> sums;
      for (const auto& backend : group.backends) {
        matrices.push_back(make_matrix(*backend, DType::kF32, 1, cols));
        sums.push_back(random.normal(cols));
      }
      run_on_all(group, [&](tensor::Backend& backend, tensor::Collective& end, int32_t rank) {
        const auto at = static_cast<size_t>(rank);
        upload(backend, sums[at], matrices[at]);
        end.all_reduce(matrices[at].matrix);
      });
      const Values first = read_back(*group.backends[0], matrices[0].matrix);
      for (size_t rank = 1; rank < matrices.size(); ++rank) {
        check_same_bits(read_back(*group.backends[rank], matrices[rank].matrix), first);
      }
      // Each of at most four roundings of a value is off by 2^-8 of it, and no partial sum exceeds the magnitudes.
      const Values wanted = add_in_tree(sums);
      for (size_t i = 0; i < first.size(); ++i) {
        float magnitude = 0;
        for (const Values& each : sums) magnitude += std::abs(each[i]);
        REQUIRE(std::abs(first[i] - wanted[i]) <= magnitude * 4 * 0x1p-8f);
      }
      if (cols > 1000) REQUIRE(first != wanted);
    }
  }
}

TEST_CASE("TCP collectives: a silent rank is named") {
  RankGroup group = make_ranks(2, {.silence = 50ms});
  const DeviceMatrix sums = make_matrix(*group.backends[0], DType::kF32, 1, 8);
  const auto failures = try_on_all(group, [&](tensor::Backend&, tensor::Collective& end, int32_t rank) {
    if (rank == 0) end.all_reduce(sums.matrix);
  });
  REQUIRE_THAT(message_of(failures[0]), Mentions("rank 1 of stage 0 at 127.0.0.1", "50 ms"));
  // The silent one is told why it is on its own.
  const auto later = try_on_all(group, [&](tensor::Backend&, tensor::Collective& end, int32_t rank) {
    if (rank == 1) end.all_reduce(sums.matrix);
  });
  REQUIRE_THAT(message_of(later[1]), Mentions("rank 1 of stage 0", "50 ms"));
}

TEST_CASE("TCP collectives: an abort reaches ranks without a connection") {
  RankGroup group = make_ranks(8, {.silence = kPatience});
  std::vector<DeviceMatrix> sums;
  for (const auto& backend : group.backends) sums.push_back(make_matrix(*backend, DType::kF32, 1, 8));
  const auto failures = try_on_all(group, [&](tensor::Backend&, tensor::Collective& end, int32_t rank) {
    // Rank 7 exchanges with 6, 5 and 3 only.
    rank == 0 ? end.abort("rank 0 has burnt down") : end.all_reduce(sums[static_cast<size_t>(rank)].matrix);
  });
  for (size_t rank = 1; rank < failures.size(); ++rank) {
    REQUIRE_THAT(message_of(failures[rank]), Mentions("rank 0 has burnt down"));
  }
}

namespace {

asio::awaitable<void> meet_a_stranger(TcpWorld& world, tensor::Backend& backend) {
  comm::TcpCollectiveOptions options{.position = {1, 2},
                                     .stage = StageId(3),
                                     .facts = sample_hello(),
                                     .endpoints = {world.listener->endpoint(), world.listener->endpoint()},
                                     .sockets = patient_options()};
  // The listener expects the same rank of a ring with another model.
  comm::LinkHello expected = sample_hello();
  expected.from = comm::collective_id(StageId(3), 1);
  expected.to = comm::collective_id(StageId(3), 0);
  expected.fingerprint_low += 1;
  async::TaskGroup tasks(world.runtime);
  std::string failure;
  const auto connect = [](TcpWorld& its_world, comm::TcpCollectiveOptions its_options, tensor::Backend& its_backend,
                          std::string& its_failure) -> asio::awaitable<void> {
    auto end = co_await comm::connect_tcp_collective(its_world.runtime, *its_world.listener, its_options, its_backend,
                                                     its_world.soon());
    its_failure = end.has_error() ? end.error().message : "connected";
    its_world.listener->close();
  };
  tasks.spawn("connect", connect(world, options, backend, failure));
  const auto lanes = co_await world.listener->accept_lanes(expected, patient_options(), world.soon());
  co_await tasks.join();
  REQUIRE(lanes.has_error());
  REQUIRE_THAT(failure, Mentions("rank 1 of stage 3 -> rank 0 of stage 3", "fingerprint"));
}

}  // namespace

TEST_CASE("TCP collectives: a rank of another model is refused") {
  TcpWorld world;
  const auto backend = cpu::make_backend({.threads = 1});
  world.run(meet_a_stranger(world, *backend));
}
