#include "sched/scheduler/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace millrace::sched {
namespace {

/// Rounds of decode that differ by less are alike.
constexpr double kRoundTolerance = 1.02;
/// Rows that take no longer to compute than their weights take to be read, on every device.
constexpr double kRowsPerReading = 3;

}  // namespace

CostFit& CostModel::fit(StageId stage) {
  if (stage.value() >= stages_.size()) stages_.resize(stage.value() + 1);
  return stages_[stage.value()];
}

void CostModel::set_prior() {
  for (CostFit& stage : stages_) stage.set_prior();
}

bool CostModel::usable() const {
  return !stages_.empty() && std::ranges::all_of(stages_, &CostFit::usable);
}

double CostModel::prompt_share(StageId stage, const BatchShape& shape) const {
  if (stage.value() >= stages_.size()) return 0;
  const CostCoefficients& costs = stages_[stage.value()].coefficients();
  const double whole = costs.predict_us(shape);
  return whole > 0 ? costs.prompt_us(shape) / whole : 0;
}

double CostModel::slowest_us(const BatchShape& shape) const {
  double slowest = 0;
  for (const CostFit& stage : stages_) slowest = std::max(slowest, stage.coefficients().predict_us(shape));
  return slowest;
}

double CostModel::slowest_prompt_us(uint32_t tokens) const {
  const double x = tokens;
  double slowest = 0;
  for (const CostFit& stage : stages_) {
    const CostCoefficients& costs = stage.coefficients();
    slowest = std::max(slowest, costs.fixed_us + (costs.per_token_us * x + costs.per_pair_us * (x * x)));
  }
  return slowest;
}

double CostModel::chunk_for(const BatchShape& shape, uint32_t prefix, double target_us) const {
  CHECK(!stages_.empty());
  double chunk = std::numeric_limits<double>::infinity();
  for (const CostFit& stage : stages_) {
    chunk = std::min(chunk, stage.coefficients().chunk_for(shape, prefix, target_us));
  }
  return chunk;
}

double CostModel::round_us(const BatchShape& all, uint32_t groups, double transit_us,
                           const std::optional<SharedMachine>& machine) const {
  const BatchShape share{.decode_count = std::ceil(all.decode_count / groups),
                         .decode_context = all.decode_context / groups};
  double runs = 0;
  double slowest = 0;
  for (const CostFit& stage : stages_) {
    const double run_us = stage.coefficients().predict_us(share);
    runs += run_us;
    slowest = std::max(slowest, run_us);
  }
  const double shared =
      machine ? groups * runs / machine->parallel_decodes(std::min<size_t>(groups, stages_.size())) : 0;
  return std::max({transit_us + runs, groups * slowest, shared});
}

double CostModel::extra_row_cost(const BatchShape& decodes) const {
  const double n = decodes.decode_count;
  double row_us = 0;
  double step_us = 0;
  for (const CostFit& stage : stages_) {
    row_us += stage.coefficients().per_decode_us;
    step_us += stage.coefficients().predict_us(decodes);
  }
  const double share = usable() && step_us > 0 ? row_us * n / step_us : 1;
  return n > kRowsPerReading ? share : std::min(share, n / (n + kRowsPerReading));
}

uint32_t CostModel::decode_groups(const BatchShape& all, uint32_t max_groups, double transit_us,
                                  const std::optional<SharedMachine>& machine) const {
  const auto round = [&](uint32_t groups) { return round_us(all, groups, transit_us, machine); };
  double shortest = std::numeric_limits<double>::infinity();
  for (uint32_t groups = 1; groups <= max_groups; ++groups) shortest = std::min(shortest, round(groups));
  uint32_t chosen = max_groups;
  while (chosen > 1 && round(chosen) > kRoundTolerance * shortest) --chosen;
  return chosen;
}

}  // namespace millrace::sched
