#include "comm/collective/sum_tree.h"

#include "conformance/rank_group.h"

using namespace millrace;
using namespace millrace::test;

TEST_CASE("sum_tree: a range is added in place and nothing else changes") {
  Random random(test_seed());
  INFO("MILLRACE_TEST_SEED=" << test_seed());
  constexpr int64_t kCount = 2000;
  for (const size_t size : {1, 2, 4, 8}) {
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, kCount}, {7, 9}, {100, 1613}, {5, 5}}) {
      CAPTURE(size, begin, end);
      std::vector<Values> sums;
      for (size_t rank = 0; rank < size; ++rank) sums.push_back(random.normal(kCount));
      const std::vector<Values> before = sums;
      const Values total = add_in_tree(before);
      std::vector<float*> matrices;
      for (Values& values : sums) matrices.push_back(values.data());
      comm::add_tree(std::vector<const float*>(matrices.begin(), matrices.end()), matrices, begin, end);
      for (size_t rank = 0; rank < size; ++rank) {
        Values wanted = before[rank];
        std::copy(total.begin() + begin, total.begin() + end, wanted.begin() + begin);
        check_same_bits(sums[rank], wanted);
      }
    }
  }
}
