#include "app/division_report.h"

#include <algorithm>
#include <array>

#include "base/log.h"

namespace millrace::app {
namespace {

using Load = model::LayerPartition::Load;

/// How much slower than the best one a division may be before the log warns. Estimates are not exact.
constexpr double kTolerance = 1.15;
/// The largest difference in time for which a division nearer to the even one is named instead.
constexpr double kNoise = 0.05;

std::string percents(const std::vector<double>& shares) {
  std::string text;
  for (const double share : shares) text += fmt::format("{}{:.0f}", text.empty() ? "" : ", ", 100 * share);
  return text + " %";
}

double slowest(const model::PartCosts& costs, const std::vector<model::LayerRange>& ranges) {
  return std::ranges::max(model::stage_costs(costs, ranges));
}

}  // namespace

model::ReferenceLoad reference_load(uint32_t max_running, int32_t stage_count) {
  model::ReferenceLoad load;
  load.decode_rows = std::clamp(static_cast<int32_t>(max_running) / stage_count, 1, load.decode_rows);
  return load;
}

model::PartCosts costs_under(const model::WorkCosts& costs, const model::ReferenceLoad& load, Load kind) {
  switch (kind) {
    case Load::kPrefill: return costs.prefill;
    case Load::kDecode: return costs.decode;
    case Load::kMixed: break;
  }
  return model::mixed_costs(costs, load.steps_per_prompt());
}

std::string division_text(const std::vector<model::LayerRange>& ranges) {
  std::string text;
  for (const model::LayerRange& range : ranges) text += (text.empty() ? "" : ",") + std::to_string(range.size());
  return text;
}

std::string busy_text(const model::WorkCosts& costs, const std::vector<model::LayerRange>& ranges) {
  return fmt::format("prefill {}, decode {}", percents(model::busy_shares(costs.prefill, ranges)),
                     percents(model::busy_shares(costs.decode, ranges)));
}

void report_division(const model::WorkCosts& estimate, const model::ReferenceLoad& load,
                     const std::vector<model::LayerRange>& ranges) {
  const auto stage_count = static_cast<int32_t>(ranges.size());
  std::string better;
  double least_excess = std::numeric_limits<double>::infinity();
  for (const auto& [kind, name] :
       {std::pair(Load::kPrefill, "auto:prefill"), {Load::kMixed, "auto"}, {Load::kDecode, "auto:decode"}}) {
    const model::PartCosts costs = costs_under(estimate, load, kind);
    const std::vector<model::LayerRange> best = model::balance_layers(costs, stage_count, kNoise).value();
    least_excess = std::min(least_excess, slowest(costs, ranges) / slowest(costs, best));
    better += fmt::format("{}about {} by {}", better.empty() ? "" : ", ", division_text(best), name);
  }
  const std::string busy =
      fmt::format("layers {}: by the sizes of their weights, stages are expected to be busy as follows: {}",
                  division_text(ranges), busy_text(estimate, ranges));
  if (least_excess > kTolerance) {
    log::warn("{}. The division is far from balanced, whatever the load: {} (--pp-layer-partition)", busy, better);
  } else {
    log::info("{} ({})", busy, better);
  }
}

}  // namespace millrace::app
