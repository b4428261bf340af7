#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "async/event.h"
#include "async/runtime.h"
#include "tensor/collective.h"

namespace millrace::sim {

/// One rank's end of the exchanges between the ranks of a simulated stage, in one epoch. A virtual thread cannot block,
/// so runners call sum(), which suspends, and never the exchanges of the interface. All ends run in one VirtualWorld.
class SimulatedCollective final : public tensor::Collective {
 public:
  /// Makes the ends of a stage with one rank per backend, none of which is used, in this order.
  [[nodiscard]] static std::vector<std::unique_ptr<tensor::Collective>> make_group(
      const std::vector<tensor::Backend*>& backends);

  /// Returns the element-wise sum of what all ranks have passed in the same call. `what` names the exchange, and is
  /// equal on all ranks. Throws CollectiveAborted once the group is aborted.
  [[nodiscard]] asio::awaitable<std::vector<uint64_t>> sum(async::Runtime& runtime, uint64_t what,
                                                           std::vector<uint64_t> values);

  [[nodiscard]] tensor::RankPosition position() const override { return position_; }
  void all_reduce(tensor::Matrix sums) override;
  void all_gather(tensor::Matrix slice, tensor::Matrix out) override;
  void abort(const std::string& reason) override;

 private:
  /// An exchange that some ranks have begun.
  struct Exchange {
    uint64_t what = 0;
    std::vector<uint64_t> sums;
    std::vector<async::Event> waiting;  // one per rank that has come
  };
  struct Group {
    std::shared_ptr<Exchange> open;     // null: the next call begins one
    std::optional<std::string> reason;  // set: aborted
  };
  SimulatedCollective(tensor::RankPosition position, std::shared_ptr<Group> group)
      : position_(position), group_(std::move(group)) {}

  const tensor::RankPosition position_;
  const std::shared_ptr<Group> group_;
};

}  // namespace millrace::sim
