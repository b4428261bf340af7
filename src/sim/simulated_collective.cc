#include "sim/simulated_collective.h"

#include "base/check.h"

namespace millrace::sim {

std::vector<std::unique_ptr<tensor::Collective>> SimulatedCollective::make_group(
    const std::vector<tensor::Backend*>& backends) {
  const auto group = std::make_shared<Group>();
  const auto size = static_cast<int32_t>(backends.size());
  std::vector<std::unique_ptr<tensor::Collective>> ends;
  for (int32_t rank = 0; rank < size; ++rank) {
    const tensor::RankPosition position{.rank = rank, .size = size};
    ends.emplace_back(new SimulatedCollective(position, group));
  }
  return ends;
}

asio::awaitable<std::vector<uint64_t>> SimulatedCollective::sum(async::Runtime& runtime, uint64_t what,
                                                                std::vector<uint64_t> values) {
  if (group_->reason) throw tensor::CollectiveAborted(*group_->reason);
  if (!group_->open) {
    group_->open = std::make_shared<Exchange>(Exchange{what, std::vector<uint64_t>(values.size()), {}});
  }
  const std::shared_ptr<Exchange> exchange = group_->open;
  CHECK(exchange->what == what && exchange->sums.size() == values.size(), "rank {} exchanges {} while others do {}",
        position_.rank, what, exchange->what);
  for (size_t i = 0; i < values.size(); ++i) exchange->sums[i] += values[i];
  const async::Event complete = exchange->waiting.emplace_back(runtime);
  if (exchange->waiting.size() == static_cast<size_t>(position_.size)) {
    group_->open.reset();
    for (const async::Event& each : exchange->waiting) each.set();
  }
  co_await complete.wait();
  co_return exchange->sums;
}

void SimulatedCollective::all_reduce(tensor::Matrix) {
  CHECK(false, "a virtual thread cannot wait in an exchange");
}

void SimulatedCollective::all_gather(tensor::Matrix, tensor::Matrix) {
  CHECK(false, "a virtual thread cannot wait in an exchange");
}

void SimulatedCollective::abort(const std::string& reason) {
  if (group_->reason) return;
  group_->reason = reason;
  const std::shared_ptr<Exchange> open = std::exchange(group_->open, nullptr);
  if (!open) return;
  for (const async::Event& each : open->waiting) {
    each.set(std::make_exception_ptr(tensor::CollectiveAborted(reason)));
  }
}

}  // namespace millrace::sim
