#include "sim/rank_costs.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "sim/description_fields.h"

namespace millrace::sim {
namespace {

constexpr uint32_t kMaxRanks = 1024;

/// One level of the network: `members` that exchange with a bandwidth and a latency each.
struct Level {
  int32_t members = 1;
  double bytes_per_second = 0;
  double latency_us = 0;
};

/// Adds the cost of one all-reduce over a level, `count` times per layer.
void add_all_reduce(sched::CostCoefficients& cost, const Level& level, double count, double bytes_per_token) {
  if (level.members < 2) return;
  const double members = level.members;
  const double steps = 2.0 * std::bit_width(static_cast<uint32_t>(level.members - 1));
  cost.fixed_us += count * steps * level.latency_us;
  if (level.bytes_per_second <= 0) return;
  cost.per_token_us += count * 2 * (members - 1) / members * bytes_per_token / level.bytes_per_second * 1e6;
}

}  // namespace

Result<RankCosts> RankCosts::parse(JsonValue value) {
  JsonObject fields;
  if (!value.get(fields)) return Error{ErrorCode::kData, "ranks: wanted an object"};
  RankCosts costs;
  for (const auto field : fields) {
    const std::string name = fmt::format("ranks.{}", std::string_view(field.key));
    if (field.key == "size" || field.key == "node_ranks") {
      int32_t& into = field.key == "size" ? costs.size : costs.node_ranks;
      RETURN_IF_ERROR(read_integer(name, field.value, kMaxRanks, into));
      if (!std::has_single_bit(static_cast<uint32_t>(into))) {
        return make_error(ErrorCode::kData, "{}: {}, wanted a power of two", name, into);
      }
      continue;
    }
    const auto found = read_number(name, field.value);
    if (found.has_error()) return found.error();
    if (field.key == "all_reduces_per_layer") {
      costs.all_reduces_per_layer = *found;
    } else if (field.key == "bytes_per_token") {
      costs.bytes_per_token = *found;
    } else if (field.key == "gb_per_s") {
      costs.bytes_per_second = *found * 1e9;
    } else if (field.key == "latency_us") {
      costs.latency_us = *found;
    } else if (field.key == "node_gb_per_s") {
      costs.node_bytes_per_second = *found * 1e9;
    } else if (field.key == "node_latency_us") {
      costs.node_latency_us = *found;
    } else {
      return make_error(ErrorCode::kData, "{}: unknown", name);
    }
  }
  return costs;
}

sched::CostCoefficients RankCosts::divide(const sched::CostCoefficients& cost, int32_t ranks) {
  CHECK(ranks >= 1, "a stage of {} ranks", ranks);
  sched::CostCoefficients part = cost;
  for (double* each : {&part.per_token_us, &part.per_pair_us, &part.per_decode_us, &part.per_context_us})
    *each /= ranks;
  return part;
}

sched::CostCoefficients RankCosts::divide_layer(const sched::CostCoefficients& layer, int32_t ranks) const {
  sched::CostCoefficients part = divide(layer, ranks);
  const int32_t in_node = std::min(ranks, node_ranks);
  const Level node{.members = in_node, .bytes_per_second = bytes_per_second, .latency_us = latency_us};
  const Level network{
      .members = ranks / in_node, .bytes_per_second = node_bytes_per_second, .latency_us = node_latency_us};
  for (const Level& level : {node, network}) add_all_reduce(part, level, all_reduces_per_layer, bytes_per_token);
  return part;
}

}  // namespace millrace::sim
