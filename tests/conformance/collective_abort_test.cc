#include <atomic>
#include <chrono>
#include <thread>

#include "conformance/rank_group.h"
#include "support/effort.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;
using tensor::DType;

namespace {

std::vector<DeviceMatrix> make_sums(RankGroup& group, int64_t rows, int64_t cols) {
  std::vector<DeviceMatrix> matrices;
  for (const auto& backend : group.backends) matrices.push_back(make_matrix(*backend, DType::kF32, rows, cols));
  return matrices;
}

}  // namespace

TEST_CASE("Collectives: after an abort calls throw the first reason") {
  for (const CollectiveCase& each : collective_cases()) {
    for (const int32_t size : {1, 2, 4, 8}) {
      CAPTURE(each.name, size);
      RankGroup group = each.make(size);
      const auto sums = make_sums(group, 3, 40);
      const auto gathered = make_sums(group, 3, int64_t{40} * size);
      group.ends[0]->abort("the power is off");
      group.ends[0]->abort("a later reason");
      for (const bool gather : {false, true}) {
        const auto failures = try_on_all(group, [&](tensor::Backend&, tensor::Collective& end, int32_t rank) {
          const auto at = static_cast<size_t>(rank);
          gather ? end.all_gather(sums[at].matrix, gathered[at].matrix) : end.all_reduce(sums[at].matrix);
        });
        for (const std::exception_ptr& failure : failures) {
          REQUIRE_THAT(message_of(failure), Mentions("the power is off"));
        }
      }
    }
  }
}

TEST_CASE("Collectives: an abort frees the ranks that wait") {
  for (const CollectiveCase& each : collective_cases()) {
    for (const int32_t size : {2, 4, 8}) {
      for (const int32_t absent : {0, size - 1}) {
        CAPTURE(each.name, size, absent);
        RankGroup group = each.make(size);
        const auto sums = make_sums(group, 300, 40);
        std::atomic<int32_t> arrived = 0;
        std::thread aborter([&] {
          while (arrived < size - 1) std::this_thread::sleep_for(100us);
          group.ends[static_cast<size_t>(absent)]->abort("the absent rank is gone");
        });
        auto failures = try_on_all(group, [&](tensor::Backend&, tensor::Collective& end, int32_t rank) {
          if (rank == absent) return;
          ++arrived;
          end.all_reduce(sums[static_cast<size_t>(rank)].matrix);
        });
        aborter.join();
        failures.erase(failures.begin() + absent);
        check_ended(group, "the absent rank is gone", failures);
      }
    }
  }
}

TEST_CASE("Collectives: a rank that is destroyed frees the others") {
  for (const CollectiveCase& each : collective_cases()) {
    CAPTURE(each.name);
    RankGroup group = each.make(4);
    const auto sums = make_sums(group, 5, 40);
    auto failures = try_on_all(group, [&](tensor::Backend&, tensor::Collective& end, int32_t rank) {
      if (rank == 2) {
        group.ends[2].reset();
      } else {
        end.all_reduce(sums[static_cast<size_t>(rank)].matrix);
      }
    });
    failures.erase(failures.begin() + 2);
    group.ends.erase(group.ends.begin() + 2);
    group.backends.erase(group.backends.begin() + 2);
    check_ended(group, "rank 2", failures);
  }
}

TEST_CASE("Collectives: what was complete before an abort stays") {
  for (const CollectiveCase& each : collective_cases()) {
    CAPTURE(each.name);
    RankGroup group = each.make(2);
    const auto sums = make_sums(group, 2, 9);
    const Values ones(18, 1.0f);
    run_on_all(group, [&](tensor::Backend& backend, tensor::Collective& end, int32_t rank) {
      upload(backend, ones, sums[static_cast<size_t>(rank)]);
      end.all_reduce(sums[static_cast<size_t>(rank)].matrix);
    });
    group.ends[1]->abort("the end");
    for (size_t rank : {0, 1}) {
      check_same_bits(read_back(*group.backends[rank], sums[rank].matrix), Values(18, 2.0f));
    }
  }
}

TEST_CASE("Collectives: an abort at any moment ends all ranks") {
  Random random(test_seed());
  INFO("MILLRACE_TEST_SEED=" << test_seed());
  for (const CollectiveCase& each : collective_cases()) {
    for (uint64_t repetition = 0; repetition < repetitions(20); ++repetition) {
      const int32_t size = int32_t{1} << random.integer(1, 3);
      const int64_t rows = random.integer(0, 1) == 0 ? 1 : 64;
      CAPTURE(each.name, size, rows);
      RankGroup group = each.make(size);
      const auto sums = make_sums(group, rows, 257);
      const auto aborting = static_cast<size_t>(random.integer(0, size - 1));
      std::thread aborter([&, pause = std::chrono::microseconds(random.integer(0, 3000))] {
        std::this_thread::sleep_for(pause);
        group.ends[aborting]->abort("enough");
      });
      const auto failures = try_on_all(group, [&](tensor::Backend&, tensor::Collective& end, int32_t rank) {
        for (;;) end.all_reduce(sums[static_cast<size_t>(rank)].matrix);
      });
      aborter.join();
      for (const std::exception_ptr& failure : failures) REQUIRE_THAT(message_of(failure), Mentions("enough"));
    }
  }
}

TEST_CASE("Collectives: ranks that make different calls are told so") {
  for (const CollectiveCase& each : collective_cases()) {
    if (!each.compares_calls) continue;
    CAPTURE(each.name);
    for (const bool other_call : {false, true}) {
      RankGroup group = each.make(2);
      const auto sums = make_sums(group, 4, 8);
      const auto gathered = make_sums(group, 4, 16);
      const auto failures = try_on_all(group, [&](tensor::Backend&, tensor::Collective& end, int32_t rank) {
        tensor::Matrix matrix = sums[static_cast<size_t>(rank)].matrix;
        if (rank == 1 && other_call) return end.all_gather(matrix, gathered[1].matrix);
        if (rank == 1) matrix.rows = 3;
        end.all_reduce(matrix);
      });
      const bool either = std::ranges::any_of(failures, [&](const std::exception_ptr& failure) {
        return Mentions("all_reduce", "[4, 8]", other_call ? "all_gather" : "[3, 8]").match(message_of(failure));
      });
      REQUIRE(either);
      for (const std::exception_ptr& failure : failures) REQUIRE(failure != nullptr);
    }
  }
}
