#pragma once

#include <cstdint>

#include "base/json_value.h"
#include "base/result.h"
#include "sched/scheduler/cost_model.h"

namespace millrace::sim {

/// How the ranks of a described stage share its work, and what their collectives cost. The described costs of layers
/// are those of one rank that does everything. Ranks divide all of them except the fixed ones.
struct RankCosts {
  int32_t size = 1;                  ///< ranks per stage, unless a setting says otherwise
  int32_t node_ranks = 1;            ///< ranks on one node; more of them are on several
  double all_reduces_per_layer = 2;  ///< after attention and after the feed-forward part
  double bytes_per_token = 0;        ///< of one all-reduce
  double bytes_per_second = 0;       ///< of a rank, within its node
  double latency_us = 0;             ///< of one step between ranks of a node
  double node_bytes_per_second = 0;  ///< of all ranks of a node together, to other nodes
  double node_latency_us = 0;        ///< of one step between nodes

  /// Reads the member `ranks` of a description. Errors name the field.
  [[nodiscard]] static Result<RankCosts> parse(JsonValue value);
  /// Returns the cost of a layer on each of `ranks` ranks, a power of two, collectives included. Within a node, and
  /// then between nodes, an all-reduce scatters partial sums and gathers the results. Every rank sends and receives 2
  /// (n-1)/n of the bytes in 2 log2(n) steps.
  [[nodiscard]] sched::CostCoefficients divide_layer(const sched::CostCoefficients& layer, int32_t ranks) const;
  /// Returns the cost of the output head on each of `ranks` ranks.
  [[nodiscard]] static sched::CostCoefficients divide(const sched::CostCoefficients& cost, int32_t ranks);
};

}  // namespace millrace::sim
