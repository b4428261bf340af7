#include "sim/simulated_experts.h"

#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "comm/ring_reason.h"

namespace millrace::sim {

/// The exchanges of one common epoch. A stage's group has an end per ring and rank.
struct SimulatedExperts::Epoch {
  uint64_t number = 0;
  std::vector<std::vector<std::unique_ptr<tensor::Collective>>> stages;  // [stages][rings · ranks]
  bool has_ended = false;
  int32_t ending_ring = -1;
  std::string ending_reason;
};

/// Notes the epoch that a ring is in.
class SimulatedExperts::Part final : public sched::EpochExchange {
 public:
  asio::awaitable<void> begin(async::Runtime& /*runtime*/, const sched::StepEpochs::Membership& joined) override {
    epoch = joined.epoch;
    co_return;
  }
  uint64_t epoch = 0;
};

SimulatedExperts::SimulatedExperts(uint32_t ring_count, uint32_t rank_count, uint64_t lookahead,
                                   VirtualCollectiveOptions options)
    : ring_count_(ring_count),
      rank_count_(rank_count),
      options_(options),
      steps_(ring_count, lookahead,
             [this](uint64_t number, int32_t ring, const std::string& reason) { end_exchange(number, ring, reason); }) {
}

SimulatedExperts::~SimulatedExperts() = default;

/// Ends the exchange of an epoch; the first end counts.
void SimulatedExperts::end_exchange(uint64_t number, int32_t ring, const std::string& reason) {
  const std::shared_ptr<Epoch> epoch = epoch_of(number);
  if (std::exchange(epoch->has_ended, true)) return;
  epoch->ending_ring = ring;
  epoch->ending_reason = reason;
  for (const auto& ends : epoch->stages) ends.front()->abort(reason);
}

void SimulatedExperts::divide(async::VirtualWorld& world, const SimulatedLinkOptions& links) {
  CHECK(runtimes_.empty(), "the rings are divided before they are made");
  for (uint32_t ring = 1; ring < ring_count_; ++ring) {
    connections_.push_back(std::make_unique<SimulatedSteps>(
        world, steps_, ring, ring_count_, links,
        [this](uint64_t number, int32_t origin, const std::string& reason) { end_exchange(number, origin, reason); }));
  }
}

void SimulatedExperts::stop() {
  for (const auto& connection : connections_) connection->stop();
}

sched::StepEpochs& SimulatedExperts::epochs(uint32_t ring) {
  return ring == 0 || !is_divided() ? static_cast<sched::StepEpochs&>(steps_) : connection(ring).epochs();
}

sched::EpochExchange& SimulatedExperts::exchange(uint32_t ring) {
  return *parts_[ring];
}

uint32_t SimulatedExperts::add_ring(std::vector<async::Runtime*> runtimes) {
  CHECK(runtimes_.size() < ring_count_, "more than {} rings", ring_count_);
  runtimes_.push_back(std::move(runtimes));
  parts_.push_back(std::make_unique<Part>());
  return static_cast<uint32_t>(runtimes_.size() - 1);
}

/// Returns an epoch, which the first ring makes that joins it. The rings have all left the one before.
std::shared_ptr<SimulatedExperts::Epoch> SimulatedExperts::epoch_of(uint64_t number) {
  if (newest_ && newest_->number == number) return newest_;
  CHECK(runtimes_.size() == ring_count_, "an epoch of {} rings, wanted {}", runtimes_.size(), ring_count_);
  newest_ = std::make_shared<Epoch>();
  newest_->number = number;
  for (size_t first = 0; first < runtimes_.front().size(); first += rank_count_) {
    std::vector<std::reference_wrapper<async::Runtime>> ends;
    for (const auto& ring : runtimes_) {
      for (size_t rank = 0; rank < rank_count_; ++rank) ends.emplace_back(*ring[first + rank]);
    }
    newest_->stages.push_back(SimulatedCollective::make_group(ends, options_));
  }
  return newest_;
}

std::unique_ptr<tensor::ExpertExchange> SimulatedExperts::join(uint32_t ring, StageId stage, uint32_t rank) {
  std::shared_ptr<Epoch> joined = epoch_of(parts_[ring]->epoch);
  auto& end = static_cast<SimulatedCollective&>(*joined->stages[stage.value()][ring * rank_count_ + rank]);
  return std::make_unique<SimulatedExpertExchange>(*this, std::move(joined), ring, rank, end);
}

SimulatedExpertExchange::SimulatedExpertExchange(SimulatedExperts& sharing,
                                                 std::shared_ptr<SimulatedExperts::Epoch> epoch, uint32_t ring,
                                                 uint32_t rank, SimulatedCollective& end)
    : experts_(sharing), epoch_(std::move(epoch)), ring_(ring), rank_(rank), end_(end) {}

asio::awaitable<std::vector<uint64_t>> SimulatedExpertExchange::sum(uint64_t what, std::vector<uint64_t> values) {
  try {
    co_return co_await end_.sum(what, std::move(values));
  } catch (const tensor::CollectiveAborted&) {
    throw tensor::CollectiveAborted(
        comm::ring_reason(static_cast<int32_t>(ring_), epoch_->ending_ring, epoch_->ending_reason));
  }
}

// All ranks of a ring have its rows, and one of them is enough.
asio::awaitable<bool> SimulatedExpertExchange::begin(uint64_t step, size_t rows) {
  CHECK(step > step_, "step {} begins after step {}", step, step_);
  step_ = step;
  std::vector<uint64_t> counts(experts_.ring_count_);
  if (rank_ == 0) counts[ring_] = rows;
  counts = co_await sum(step, std::move(counts));
  first_row_ = row_count_ = 0;
  for (size_t ring = 0; ring < counts.size(); ++ring) {
    if (ring < ring_) first_row_ += counts[ring];
    row_count_ += counts[ring];
  }
  co_return row_count_ > 0;
}

asio::awaitable<std::vector<uint64_t>> SimulatedExpertExchange::differences(int32_t layer,
                                                                            std::vector<uint64_t> hidden) {
  const uint64_t exchange = mix_bits(step_ << 16 | static_cast<uint64_t>(layer));
  std::vector<uint64_t> all(row_count_);
  if (rank_ == 0) std::ranges::copy(hidden, all.begin() + static_cast<ptrdiff_t>(first_row_));
  all = co_await sum(exchange, std::move(all));
  const int shift = 8 * position().first_shard();
  const uint64_t own_bytes = (~uint64_t{0} >> (64 - 8 * position().shard_count())) << shift;
  for (uint64_t& row : all) row = mix_bits(row) & own_bytes;
  all = co_await sum(exchange + 1, std::move(all));
  std::vector<uint64_t> found(hidden.size());
  for (size_t row = 0; row < hidden.size(); ++row) found[row] = all[first_row_ + row] ^ mix_bits(hidden[row]);
  co_return found;
}

void SimulatedExpertExchange::abort(const std::string& reason) {
  experts_.epochs(ring_).end_epoch(epoch_->number, static_cast<int32_t>(ring_), reason);
}

bool SimulatedExpertExchange::begin_step(uint64_t, bool) {
  CHECK(false, "a virtual thread cannot wait in an exchange");
}

int64_t SimulatedExpertExchange::dispatch(tensor::Matrix, tensor::Matrix, tensor::Matrix, tensor::Matrix) {
  CHECK(false, "a virtual thread cannot wait in an exchange");
}

void SimulatedExpertExchange::combine(tensor::Matrix, tensor::Matrix) {
  CHECK(false, "a virtual thread cannot wait in an exchange");
}

}  // namespace millrace::sim
