#include "app/rank_processors.h"

#include <algorithm>
#include <utility>

#include "base/machine.h"
#include "model/rank_layout.h"

namespace millrace::app {
namespace {

/// Returns the NUMA node with which the range of a rank begins.
size_t first_node(int32_t rank, int32_t rank_count, size_t node_count) {
  return static_cast<size_t>(rank) * node_count / static_cast<size_t>(rank_count);
}

}  // namespace

int32_t threads_per_rank(int32_t threads, int32_t rank_count) {
  if (threads <= 0) threads = static_cast<int32_t>(Machine().processors());
  return std::max(1, threads / rank_count);
}

Result<RankProcessors> rank_processors(const NodeOptions& node, const NodeRank& rank,
                                       const std::vector<std::vector<int>>& numa_nodes) {
  const int32_t own = rank.rank;
  const int32_t size = rank.rank_count;
  const bool divides = size > 1 && numa_nodes.size() > 1;
  const size_t first = divides ? first_node(own, size, numa_nodes.size()) : 0;
  const size_t end = divides ? std::max(first + 1, first_node(own + 1, size, numa_nodes.size())) : numa_nodes.size();
  std::vector<int> processors;
  for (size_t i = first; i < end; ++i) {
    processors.insert(processors.end(), numa_nodes[i].begin(), numa_nodes[i].end());
  }
  RankProcessors found;
  if (divides) found.near = processors;
  if (!node.pin_threads) return found;
  // The ranks that share these processors, and this one's number among them.
  int32_t sharing = 0;
  int32_t before = 0;
  for (int32_t other = 0; other < size; ++other) {
    if (divides && first_node(other, size, numa_nodes.size()) != first) continue;
    if (other < own) ++before;
    ++sharing;
  }
  const int32_t threads = threads_per_rank(node.threads, rank.count());
  const int32_t wanted = threads * sharing * rank.stage_count * rank.ring_count;
  if (std::cmp_less(processors.size(), wanted)) {
    return make_error(ErrorCode::kInvalidArgument, "--pin-threads: {} threads want a CPU each, this process may use {}",
                      wanted, processors.size());
  }
  std::ranges::sort(processors);
  const auto begin = processors.begin() + threads * ((rank.ring * rank.stage_count + rank.stage) * sharing + before);
  found.pin.assign(begin, begin + threads);
  return found;
}

std::vector<size_t> nodes_of(const RankProcessors& processors, const std::vector<std::vector<int>>& numa_nodes) {
  const std::vector<int>& used = processors.pin.empty() ? processors.near : processors.pin;
  std::vector<size_t> nodes;
  for (size_t node = 0; node < numa_nodes.size(); ++node) {
    const auto is_here = [&](int processor) {
      return std::ranges::find(numa_nodes[node], processor) != numa_nodes[node].end();
    };
    if (std::ranges::any_of(used, is_here)) nodes.push_back(node);
  }
  return nodes;
}

int32_t ranks_for(const model::ModelConfig& config, size_t numa_node_count) {
  int32_t count = tensor::kSumShards;
  while (count > 1 && (std::cmp_greater(count, numa_node_count) || model::check_ranks(config, count).has_error())) {
    count /= 2;
  }
  return count;
}

}  // namespace millrace::app
