#include "sim/simulated_collective.h"

#include "base/check.h"

namespace millrace::sim {

std::vector<std::unique_ptr<tensor::Collective>> SimulatedCollective::make_group(
    const std::vector<std::reference_wrapper<async::Runtime>>& ranks, const VirtualCollectiveOptions& options) {
  const auto group = std::make_shared<VirtualGroup>(ranks, options);
  std::vector<std::unique_ptr<tensor::Collective>> ends;
  for (int32_t rank = 0; rank < group->size(); ++rank) {
    const tensor::RankPosition position{.rank = rank, .size = group->size()};
    ends.emplace_back(new SimulatedCollective(position, group));
  }
  return ends;
}

asio::awaitable<std::vector<uint64_t>> SimulatedCollective::sum(uint64_t what, std::vector<uint64_t> values) {
  values.push_back(what);
  const size_t count = values.size();
  const std::vector<uint64_t> all =
      co_await group_->all_gather(position_.rank, std::move(values), count * sizeof(uint64_t));
  CHECK(all.size() == count * static_cast<size_t>(position_.size), "ranks exchange different numbers of rows");
  std::vector<uint64_t> sums(count - 1);
  for (size_t begin = 0; begin < all.size(); begin += count) {
    CHECK(all[begin + count - 1] == what, "rank {} exchanges {} while another does {}", position_.rank, what,
          all[begin + count - 1]);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += all[begin + i];
  }
  co_return sums;
}

void SimulatedCollective::all_reduce(tensor::Matrix) {
  CHECK(false, "a virtual thread cannot wait in an exchange");
}

void SimulatedCollective::all_reduce(tensor::IntMatrix) {
  CHECK(false, "a virtual thread cannot wait in an exchange");
}

void SimulatedCollective::all_gather(tensor::Matrix, tensor::Matrix) {
  CHECK(false, "a virtual thread cannot wait in an exchange");
}

}  // namespace millrace::sim
