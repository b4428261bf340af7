#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sim/virtual_collective.h"
#include "tensor/collective.h"

namespace millrace::sim {

/// One rank's end of the exchanges between the ranks of a simulated stage, in one epoch. A virtual thread cannot block,
/// so runners call sum(), which suspends, and never the exchanges of the interface.
class SimulatedCollective final : public tensor::Collective {
 public:
  /// Makes the ends of a stage whose ranks have these runtimes, in order.
  [[nodiscard]] static std::vector<std::unique_ptr<tensor::Collective>> make_group(
      const std::vector<std::reference_wrapper<async::Runtime>>& ranks, const VirtualCollectiveOptions& options);

  /// Returns the element-wise sum of what all ranks have passed in the same call. `what` names the exchange, and is
  /// equal on all ranks. Throws CollectiveAborted once the group is aborted.
  [[nodiscard]] asio::awaitable<std::vector<uint64_t>> sum(uint64_t what, std::vector<uint64_t> values);

  [[nodiscard]] tensor::RankPosition position() const override { return position_; }
  void all_reduce(tensor::Matrix sums) override;
  void all_reduce(tensor::IntMatrix sums) override;
  void all_gather(tensor::Matrix slice, tensor::Matrix out) override;
  void abort(const std::string& reason) override { group_->abort(reason); }

 private:
  SimulatedCollective(tensor::RankPosition position, std::shared_ptr<VirtualGroup> group)
      : position_(position), group_(std::move(group)) {}

  const tensor::RankPosition position_;
  const std::shared_ptr<VirtualGroup> group_;
};

}  // namespace millrace::sim
