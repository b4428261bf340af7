#include "conformance/rank_group.h"

#include <bit>
#include <cmath>
#include <future>
#include <thread>

#include "support/mentions.h"

namespace millrace::test {

std::vector<std::exception_ptr> try_on_all(RankGroup& group, const RankWork& work) {
  std::vector<std::promise<std::exception_ptr>> outcomes(group.ends.size());
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < group.size(); ++rank) {
    const auto at = static_cast<size_t>(rank);
    // Each rank has a thread, as in a ring: a GPU runs submitted work on the caller's.
    threads.emplace_back([&, at, rank] {
      group.backends[at]->submit([&, at, rank] { work(*group.backends[at], *group.ends[at], rank); },
                                 [&outcomes, at](std::exception_ptr failure) { outcomes[at].set_value(failure); });
    });
  }
  for (std::thread& each : threads) each.join();
  std::vector<std::exception_ptr> failures;
  for (auto& outcome : outcomes) failures.push_back(outcome.get_future().get());
  return failures;
}

void run_on_all(RankGroup& group, const RankWork& work) {
  for (const std::exception_ptr& failure : try_on_all(group, work)) {
    if (failure) std::rethrow_exception(failure);
  }
}

void check_ended(RankGroup& group, const std::string& reason, const std::vector<std::exception_ptr>& failures) {
  for (const std::exception_ptr& failure : failures) REQUIRE_THAT(message_of(failure), Mentions(reason));
  const auto later = try_on_all(group, [&](tensor::Backend& backend, tensor::Collective& end, int32_t) {
    const DeviceMatrix sums = make_matrix(backend, tensor::DType::kF32, 1, 8);
    end.all_reduce(sums.matrix);
  });
  for (const std::exception_ptr& failure : later) REQUIRE_THAT(message_of(failure), Mentions(reason));
}

std::string message_of(const std::exception_ptr& failure) {
  if (!failure) return "no failure";
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
}

Values read_back(tensor::Backend& backend, const tensor::Matrix& matrix) {
  Values values;
  backend.run_and_wait([&] { values = download(backend, matrix); });
  return values;
}

Values add_in_tree(const std::vector<Values>& sums) {
  std::vector<Values> level = sums;
  while (level.size() > 1) {
    std::vector<Values> next(level.size() / 2, level[0]);
    for (size_t pair = 0; pair < next.size(); ++pair) {
      for (size_t i = 0; i < next[pair].size(); ++i) next[pair][i] = level[2 * pair][i] + level[2 * pair + 1][i];
    }
    level = std::move(next);
  }
  return level[0];
}

void check_same_bits(const Values& got, const Values& wanted) {
  REQUIRE(got.size() == wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(wanted[i])) continue;
    if (std::bit_cast<uint32_t>(got[i]) == std::bit_cast<uint32_t>(wanted[i])) continue;
    CAPTURE(i, got[i], wanted[i]);
    FAIL("the bits differ");
  }
}

}  // namespace millrace::test
