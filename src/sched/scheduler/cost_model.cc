#include "sched/scheduler/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "sched/plan/plan.h"

namespace millrace::sched {
namespace {

/// Weight that an observation keeps from one to the next: about 500 count.
constexpr double kFitDecay = 0.998;
/// The memory of each term counts as much as so many recent observations.
constexpr double kPriorWeight = 5;
/// Weight that it keeps from one timing made of that term alone to the next: about 50 count.
constexpr double kPriorForgetting = 0.98;
/// A timing of which a term is a smaller part says more of the noise than of that term.
constexpr double kMinTermPart = 0.1;
constexpr uint64_t kMinObservations = 8;
constexpr double kOutlierRatio = 3;
/// Of the last timings: reached by eight outliers in a row, and by every third timing's being one.
constexpr double kMaxOutlierShare = 0.33;
constexpr double kErrorDecay = 0.95;
constexpr double kMaxUsableError = 0.5;
/// Rounds of decode that differ by less are alike.
constexpr double kRoundTolerance = 1.02;
/// Rows that take no longer to compute than their weights to be read, on whatever device.
constexpr double kRowsPerReading = 3;

std::array<double, kCostTerms> terms_of(const BatchShape& shape) {
  return {1, shape.prefill_tokens, shape.prefill_pairs, shape.decode_count, shape.decode_context};
}

}  // namespace

void BatchShape::add_prefill(uint32_t prefix, uint32_t tokens) {
  const double x = tokens;
  prefill_tokens += x;
  prefill_pairs += 2.0 * prefix * x + x * x;
}

void BatchShape::add_decode(uint32_t context, uint32_t rows) {
  decode_count += rows;
  decode_context += context;
}

void BatchShape::add(const PlanSlice& slice) {
  if (slice.decodes()) {
    add_decode(slice.prefix + slice.token_count, slice.token_count);
  } else {
    add_prefill(slice.prefix, slice.token_count);
  }
}

double CostCoefficients::prompt_us(const BatchShape& shape) const {
  return per_token_us * shape.prefill_tokens + per_pair_us * shape.prefill_pairs;
}

double CostCoefficients::predict_us(const BatchShape& shape) const {
  return fixed_us + prompt_us(shape) + per_decode_us * shape.decode_count + per_context_us * shape.decode_context;
}

std::array<double, kCostTerms> CostCoefficients::terms_us(const BatchShape& shape) const {
  return {fixed_us, per_token_us * shape.prefill_tokens, per_pair_us * shape.prefill_pairs,
          per_decode_us * shape.decode_count, per_context_us * shape.decode_context};
}

// The positive root of a·x² + (b + 2·a·L)·x = target − t(shape), in the form that is stable for a → 0.
double CostCoefficients::chunk_for(const BatchShape& shape, uint32_t prefix, double target_us) const {
  const double room = target_us - predict_us(shape);
  if (room <= 0) return 0;
  const double slope = per_token_us + 2 * per_pair_us * prefix;
  const double root = slope + std::sqrt(slope * slope + 4 * per_pair_us * room);
  return root > 0 ? 2 * room / root : std::numeric_limits<double>::infinity();
}

// Weighted by 1/t², so that the error which is least is the relative one.
void CostFit::add(const BatchShape& shape, double run_us, double weight, Information& information) {
  information.add(terms_of(shape), run_us, weight / (run_us * run_us));
}

void CostFit::observe(const BatchShape& shape, double run_us) {
  if (!(run_us > 0)) return;
  if (fallback_fit_) {
    const double foreseen = fallback_fit_->coefficients.predict_us(shape);
    fallback_fit_->since.add(fallback_fit_->coefficients, shape,
                             std::clamp(run_us, foreseen / kOutlierRatio, foreseen * kOutlierRatio));
  }
  if (observations_ >= kMinObservations) {
    const double predicted = coefficients_.predict_us(shape);
    const bool outlier = run_us > kOutlierRatio * predicted || predicted > kOutlierRatio * run_us;
    count_outlier(outlier, predicted > 0 ? coefficients_.prompt_us(shape) / predicted : 1);
    if (outlier) {
      if (std::ranges::max(outlier_shares_) < kMaxOutlierShare) return;
      start_over();
    } else {
      relative_error_ = kErrorDecay * relative_error_ + (1 - kErrorDecay) * std::abs(run_us / predicted - 1);
      recent_speed_.add(coefficients_, shape, run_us);
      update_prior(shape, run_us);
    }
  }
  calibrate(shape, run_us);
}

// Of all timings, and of each kind of work by itself: else what is rare could be off for ever.
void CostFit::count_outlier(bool outlier, double prompt_share) {
  const std::array<double, 3> parts = {1, prompt_share, 1 - prompt_share};
  for (size_t kind = 0; kind < parts.size(); ++kind) {
    outlier_shares_[kind] += (1 - kErrorDecay) * parts[kind] * ((outlier ? 1 : 0) - outlier_shares_[kind]);
  }
}

// What a timing tells of a term's relative size grows as the square of that term's part in it: so much of the memory of
// the term makes way for it.
void CostFit::update_prior(const BatchShape& shape, double run_us) {
  std::array<double, kCostTerms> term_parts = coefficients_.terms_us(shape);
  const double least = kMinTermPart * coefficients_.predict_us(shape);
  double all = 0;
  for (double& part : term_parts) {
    part = part < least ? 0 : part * part;
    all += part;
  }
  for (size_t term = 0; term < kCostTerms; ++term) {
    const double share = term_parts[term] > 0 ? term_parts[term] / all : off_model_share(term, shape);
    if (share == 0) continue;
    const double kept = std::pow(kPriorForgetting, share);
    Information renewed;
    renewed.add(prior_[term], kept);
    add(shape, run_us, (1 - kept) * kPriorWeight, renewed);
    prior_[term] = renewed;
  }
}

// A term that is small or 0 by mistake has no part in any timing. What a timing may tell of it all the same is as much
// as the term stands out there, beside what is remembered.
double CostFit::off_model_share(size_t term, const BatchShape& shape) const {
  const double stands_out = terms_of(shape)[term] / coefficients_.predict_us(shape);
  if (!(stands_out > 0)) return 0;
  const double ratio = stands_out * stands_out * kPriorWeight / prior_[term].square(term);
  return ratio >= kMinTermPart * kMinTermPart ? std::min(ratio, 1.0) : 0;
}

// So many outliers are none, but another stage: what was learnt of the old one is dropped.
void CostFit::start_over() {
  std::optional<FallbackFit> before = fallback_fit_;
  if (!before && coefficients_.is_increasing()) before = {coefficients_, {}};
  *this = {};
  fallback_fit_ = before;
}

void CostFit::calibrate(const BatchShape& shape, double run_us) {
  if (!(run_us > 0)) return;
  Information decayed;
  decayed.add(recent_, kFitDecay);
  add(shape, run_us, 1, decayed);
  recent_ = decayed;
  ++observations_;
  solve();
}

void CostFit::set_prior() {
  if (observations_ == 0) return;
  for (Information& memory : prior_) {
    memory = {};
    memory.add(recent_, kPriorWeight / static_cast<double>(observations_));
  }
  if (coefficients_.is_increasing()) fallback_fit_ = {coefficients_, {}};
}

// A timing is forgotten as others come that have as much of the same kind of work.
void CostFit::SpeedRatio::add(double share, double run, double predicted) {
  const double kept = std::pow(kErrorDecay, share);
  run_us = kept * run_us + share * run;
  predicted_us = kept * predicted_us + share * predicted;
}

void CostFit::SpeedRatios::add(const CostCoefficients& coefficients, const BatchShape& shape, double run_us) {
  const double predicted = coefficients.predict_us(shape);
  if (!(predicted > 0)) return;
  const double prompt_share = coefficients.prompt_us(shape) / predicted;
  prompt.add(prompt_share, run_us, predicted);
  other.add(1 - prompt_share, run_us, predicted);
}

CostCoefficients CostFit::SpeedRatios::apply(const CostCoefficients& known) const {
  return {known.fixed_us * other.ratio(), known.per_token_us * prompt.ratio(), known.per_pair_us * prompt.ratio(),
          known.per_decode_us * other.ratio(), known.per_context_us * other.ratio()};
}

std::optional<CostCoefficients> CostFit::fallback() const {
  if (!fallback_fit_) return std::nullopt;
  return fallback_fit_->since.apply(fallback_fit_->coefficients);
}

bool CostFit::usable() const {
  return observations_ >= kMinObservations && coefficients_.is_increasing() && relative_error_ < kMaxUsableError;
}

void CostFit::solve() {
  Information all = recent_;
  for (const Information& memory : prior_) all.add(memory, 1);
  const CostCoefficients& last = coefficients_;
  const Information::Vector found =
      all.solve({last.fixed_us, last.per_token_us, last.per_pair_us, last.per_decode_us, last.per_context_us});
  coefficients_ = {found[0], found[1], found[2], found[3], found[4]};
}

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

uint32_t CostModel::decode_groups(const BatchShape& all, uint32_t most, double transit_us,
                                  const std::optional<SharedMachine>& machine) const {
  const auto round = [&](uint32_t groups) { return round_us(all, groups, transit_us, machine); };
  double shortest = std::numeric_limits<double>::infinity();
  for (uint32_t groups = 1; groups <= most; ++groups) shortest = std::min(shortest, round(groups));
  uint32_t chosen = most;
  while (chosen > 1 && round(chosen) > kRoundTolerance * shortest) --chosen;
  return chosen;
}

}  // namespace millrace::sched
