#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "conformance/harness.h"
#include "tensor/collective.h"

/// The shared parts of the tests of collectives: groups of ranks, and work that all of them do at once.
namespace millrace::test {

/// The ranks of one stage with their ends, by rank. The ends are destroyed before the backends.
struct RankGroup {
  std::vector<std::unique_ptr<tensor::Backend>> backends;
  std::vector<std::unique_ptr<tensor::Collective>> ends;
  [[nodiscard]] int32_t size() const { return static_cast<int32_t>(ends.size()); }
};

struct CollectiveCase {
  std::string name;
  std::function<RankGroup(int32_t size)> make;
  /// Says whether ranks that make different calls get an error. Otherwise the result is undefined.
  bool compares_calls = true;
  bool adds_integers = true;      ///< else nothing on such devices has integer sums
  uint64_t calls_in_turn = 2000;  ///< that show races; fewer where a call is slow
};

/// Returns the implementations that a program tests. The program defines it.
[[nodiscard]] std::vector<CollectiveCase> collective_cases();

/// The calls of one rank, which run inside work submitted to its backend.
using RankWork = std::function<void(tensor::Backend& backend, tensor::Collective& end, int32_t rank)>;
/// Runs `work` on all ranks at once and waits for all. Returns by rank what the work threw, or null.
[[nodiscard]] std::vector<std::exception_ptr> try_on_all(RankGroup& group, const RankWork& work);
/// Acts as try_on_all() and rethrows the first failure.
void run_on_all(RankGroup& group, const RankWork& work);
/// Fails unless the ranks of a group that has ended throw a message that mentions `reason`: those that waited, as
/// `failures` of try_on_all(), and every rank at its next call.
void check_ended(RankGroup& group, const std::string& reason, const std::vector<std::exception_ptr>& failures);
/// Returns the message of a failure, or "no failure".
[[nodiscard]] std::string message_of(const std::exception_ptr& failure);

/// Returns the values of a rank's matrix when all work on it is complete.
[[nodiscard]] Values read_back(tensor::Backend& backend, const tensor::Matrix& matrix);

/// Returns the sum of all ranks' values in the tree of tensor/collective.h.
[[nodiscard]] Values add_in_tree(const std::vector<Values>& sums);
/// Fails unless both have the same bits. Any NaN equals any other.
void check_same_bits(const Values& got, const Values& wanted);

}  // namespace millrace::test
