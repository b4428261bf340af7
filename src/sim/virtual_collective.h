#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "async/event.h"
#include "tensor/collective.h"

namespace millrace::sim {

/// The time of one step between two ranks.
struct VirtualCollectiveOptions {
  async::Duration latency{};
  double bytes_per_second = 0;  ///< 0: without limit
};

/// The collectives between the simulated ranks of one stage, in virtual time. Values are hashes, as in SimulatedModel;
/// their "sum" depends on the order, so that an addition outside of the tree shows. Owned by the ring, with the ranks
/// of one VirtualWorld. The guarantees are those of tensor::Collective.
class VirtualGroup {
 public:
  using Hashes = std::vector<uint64_t>;

  /// `ranks` are the runtimes of the ranks' virtual threads: 1, 2, 4 or 8 of them. They outlive the group.
  VirtualGroup(std::vector<std::reference_wrapper<async::Runtime>> ranks, VirtualCollectiveOptions options);

  [[nodiscard]] int32_t size() const { return static_cast<int32_t>(ranks_.size()); }
  /// Returns the sums over all ranks in the tree of tensor::Collective, after the time of recursive doubling over
  /// `bytes`. It begins when the last rank has come. Throws std::runtime_error once the group is aborted.
  [[nodiscard]] asio::awaitable<Hashes> all_reduce(int32_t rank, Hashes sums, size_t bytes);
  /// Returns the slices of all ranks, one after the other, after the time in which every rank receives the others'.
  [[nodiscard]] asio::awaitable<Hashes> all_gather(int32_t rank, Hashes slice, size_t bytes);
  /// Ends the group: waiting and later calls of all ranks throw `reason`. The first reason counts.
  void abort(const std::string& reason);

  /// Returns what stands for the sum of two hashes. It is not commutative.
  [[nodiscard]] static uint64_t add(uint64_t left, uint64_t right);

 private:
  enum class Kind : uint8_t { kAllReduce, kAllGather };
  /// One call of all ranks.
  struct Turn {
    Kind kind = Kind::kAllReduce;
    std::vector<Hashes> values;        // by rank; empty until it has come
    std::vector<async::Event> events;  // by rank: all have come, or the group has ended
    size_t arrived = 0;
    size_t taken = 0;
  };
  /// Waits until all ranks have come. Returns their values.
  [[nodiscard]] asio::awaitable<std::vector<Hashes>> meet(int32_t rank, Kind kind, Hashes values);
  [[nodiscard]] Turn& turn_of(uint64_t number);
  [[nodiscard]] async::Duration time_of(double bytes, int steps) const;
  void check() const;

  const std::vector<std::reference_wrapper<async::Runtime>> ranks_;
  const VirtualCollectiveOptions options_;
  std::deque<Turn> turns_;         // those that not all ranks have left
  uint64_t first_turn_ = 0;        // the number of the first of them
  std::vector<uint64_t> numbers_;  // calls of each rank
  std::optional<std::string> reason_;
};

}  // namespace millrace::sim
