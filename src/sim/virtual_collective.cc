#include "sim/virtual_collective.h"

#include <bit>
#include <span>
#include <stdexcept>
#include <utility>

#include "base/check.h"
#include "sim/max_duration.h"

namespace millrace::sim {
namespace {

/// Returns the sum of value `at` over some ranks.
uint64_t add_tree(std::span<const VirtualGroup::Hashes> sums, size_t at) {
  if (sums.size() == 1) return sums[0][at];
  const size_t half = sums.size() / 2;
  return VirtualGroup::add(add_tree(sums.first(half), at), add_tree(sums.subspan(half), at));
}

}  // namespace

VirtualGroup::VirtualGroup(std::vector<std::reference_wrapper<async::Runtime>> ranks, VirtualCollectiveOptions options)
    : ranks_(std::move(ranks)), options_(options), numbers_(ranks_.size(), 0) {
  CHECK(std::has_single_bit(ranks_.size()) && ranks_.size() <= tensor::kSumShards,
        "a group of {} ranks, wanted 1, 2, 4 or 8", ranks_.size());
}

uint64_t VirtualGroup::add(uint64_t left, uint64_t right) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15ull;
  return std::rotl(left * kOdd, 23) ^ (right + kOdd);
}

void VirtualGroup::check() const {
  if (reason_) throw tensor::CollectiveAborted(*reason_);
}

VirtualGroup::Turn& VirtualGroup::turn_of(uint64_t number) {
  while (number >= first_turn_ + turns_.size()) {
    Turn& turn = turns_.emplace_back();
    turn.values.resize(ranks_.size());
    for (async::Runtime& runtime : ranks_) turn.events.emplace_back(runtime);
  }
  return turns_[number - first_turn_];
}

asio::awaitable<std::vector<VirtualGroup::Hashes>> VirtualGroup::meet(int32_t rank, Kind kind, Hashes values) {
  check();
  const auto at = static_cast<size_t>(rank);
  const uint64_t number = numbers_[at]++;
  Turn& turn = turn_of(number);
  if (turn.arrived == 0) turn.kind = kind;
  turn.values[at] = std::move(values);
  if (turn.kind != kind) abort("the ranks of a stage disagree: one reduces where another gathers");
  check();
  if (++turn.arrived == ranks_.size()) {
    for (const async::Event& event : turn.events) event.set();
  }
  const async::Event event = turn.events[at];
  co_await event.wait_uncancelled();
  check();
  Turn& complete = turn_of(number);
  std::vector<Hashes> all = complete.values;
  if (++complete.taken == ranks_.size()) {
    turns_.pop_front();
    ++first_turn_;
  }
  co_return all;
}

async::Duration VirtualGroup::time_of(double bytes, int steps) const {
  const double transfer_ns = options_.bytes_per_second > 0 ? bytes / options_.bytes_per_second * 1e9 : 0;
  return clamped_duration(transfer_ns) + steps * options_.latency;
}

asio::awaitable<VirtualGroup::Hashes> VirtualGroup::all_reduce(int32_t rank, Hashes sums, size_t bytes) {
  const std::vector<Hashes> all = co_await meet(rank, Kind::kAllReduce, std::move(sums));
  for (const Hashes& each : all) {
    if (each.size() != all[0].size()) {
      abort(fmt::format("the ranks of a stage disagree: one adds {} values, another {}", all[0].size(), each.size()));
    }
  }
  check();
  const int steps = std::bit_width(ranks_.size()) - 1;
  co_await async::sleep_for(ranks_[static_cast<size_t>(rank)], time_of(static_cast<double>(bytes) * steps, steps));
  check();
  Hashes total(all[0].size());
  for (size_t i = 0; i < total.size(); ++i) total[i] = add_tree(all, i);
  co_return total;
}

asio::awaitable<VirtualGroup::Hashes> VirtualGroup::all_gather(int32_t rank, Hashes slice, size_t bytes) {
  const std::vector<Hashes> all = co_await meet(rank, Kind::kAllGather, std::move(slice));
  const int steps = std::bit_width(ranks_.size()) - 1;
  const double received = static_cast<double>(bytes) * static_cast<double>(ranks_.size() - 1);
  co_await async::sleep_for(ranks_[static_cast<size_t>(rank)], time_of(received, steps));
  check();
  Hashes joined;
  for (const Hashes& each : all) joined.insert(joined.end(), each.begin(), each.end());
  co_return joined;
}

void VirtualGroup::abort(const std::string& reason) {
  if (reason_) return;
  reason_ = reason;
  for (const Turn& turn : turns_) {
    for (const async::Event& event : turn.events) event.set();
  }
}

}  // namespace millrace::sim
