#include "sched/stage/activation_slices.h"

#include "conformance/rank_group.h"

using namespace millrace;
using namespace millrace::test;
using sched::ActivationSlices;
using tensor::DType;

TEST_CASE("activation slices: stages of equal ranks send T-th parts") {
  constexpr int64_t kHidden = 896;
  for (const int32_t size : {2, 4, 8}) {
    for (int32_t rank = 0; rank < size; ++rank) {
      const ActivationSlices slices({rank, size}, size, kHidden);
      REQUIRE(slices.sliced());
      REQUIRE(slices.columns() == kHidden / size);
      REQUIRE(slices.row_bytes(DType::kF32) == kHidden / static_cast<size_t>(size) * 4);
      REQUIRE(slices.source_rank() == rank);
    }
  }
}

TEST_CASE("activation slices: other pairs of stages send whole rows") {
  REQUIRE_FALSE(ActivationSlices({0, 1}, 1, 896).sliced());
  REQUIRE_FALSE(ActivationSlices({1, 4}, 2, 896).sliced());
  REQUIRE_FALSE(ActivationSlices({1, 4}, 4, 898).sliced());
  REQUIRE(ActivationSlices({1, 4}, 2, 896).columns() == 896);
  // Every rank has a source, and no source has more than its share.
  for (const int32_t before : {1, 2, 4, 8}) {
    for (const int32_t size : {1, 2, 4, 8}) {
      std::vector<int32_t> receivers(static_cast<size_t>(before), 0);
      for (int32_t rank = 0; rank < size; ++rank) {
        const int32_t source = ActivationSlices({rank, size}, before, 64).source_rank();
        REQUIRE(source < before);
        ++receivers[static_cast<size_t>(source)];
      }
      for (const int32_t count : receivers) REQUIRE(count <= std::max(1, size / before));
    }
  }
}

TEST_CASE("activation slices: what is packed comes together again") {
  Random random(test_seed());
  INFO("MILLRACE_TEST_SEED=" << test_seed());
  for (const CollectiveCase& each : collective_cases()) {
    for (const int32_t size : {2, 4, 8}) {
      RankGroup group = each.make(size);
      for (const int64_t rows : {0, 1, 9, 300}) {
        constexpr int64_t kHidden = 8 * 13;
        CAPTURE(each.name, size, rows);
        const Values whole = random.normal(rows * kHidden);
        std::vector<DeviceMatrix> sent;
        std::vector<DeviceMatrix> packed;
        std::vector<DeviceMatrix> received;
        for (const auto& backend : group.backends) {
          sent.push_back(make_matrix(*backend, DType::kF32, rows, kHidden));
          packed.push_back(make_matrix(*backend, DType::kF32, rows, kHidden / size));
          received.push_back(make_matrix(*backend, DType::kF32, rows, kHidden));
        }
        run_on_all(group, [&](tensor::Backend& backend, tensor::Collective& end, int32_t rank) {
          const auto at = static_cast<size_t>(rank);
          const ActivationSlices slices(end.position(), size, kHidden);
          upload(backend, whole, sent[at]);
          slices.pack(backend, sent[at].matrix, packed[at].matrix);
          slices.gather(end, packed[at].matrix, received[at].matrix);
        });
        for (size_t at = 0; at < received.size(); ++at) {
          check_same_bits(read_back(*group.backends[at], received[at].matrix), whole);
        }
      }
    }
  }
}
