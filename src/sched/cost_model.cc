#include "sched/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace millrace::sched {
namespace {

/// Weight that an observation keeps from one to the next: about 500 count.
constexpr double kForgetting = 0.998;
/// The anchor counts as much as so many recent observations.
constexpr double kAnchorWeight = 25;
/// Relative; keeps systems solvable whose terms have always changed together.
constexpr double kRidge = 1e-9;
constexpr uint64_t kFewestObservations = 8;
constexpr double kOutlierRatio = 3;
/// Of the last timings: reached by eight outliers in a row, and by every third timing's being one.
constexpr double kLargestOutlierShare = 0.33;
constexpr double kErrorMemory = 0.95;
constexpr double kLargestUsableError = 0.5;
/// Rounds of decode that differ by less are alike.
constexpr double kRoundTolerance = 1.02;

}  // namespace

void BatchShape::add_prefill(uint32_t prefix, uint32_t tokens) {
  const double x = tokens;
  prefill_tokens += x;
  prefill_pairs += 2.0 * prefix * x + x * x;
}

void BatchShape::add_decode(uint32_t context) {
  decode_count += 1;
  decode_context += context;
}

double CostCoefficients::prompt_us(const BatchShape& shape) const {
  return per_token_us * shape.prefill_tokens + per_pair_us * shape.prefill_pairs;
}

double CostCoefficients::predict_us(const BatchShape& shape) const {
  return fixed_us + prompt_us(shape) + per_decode_us * shape.decode_count + per_context_us * shape.decode_context;
}

// The positive root of a·x² + (b + 2·a·L)·x = target − t(shape), in the form that is stable for a → 0.
double CostCoefficients::chunk_for(const BatchShape& shape, uint32_t prefix, double target_us) const {
  const double room = target_us - predict_us(shape);
  if (room <= 0) return 0;
  const double slope = per_token_us + 2 * per_pair_us * prefix;
  const double root = slope + std::sqrt(slope * slope + 4 * per_pair_us * room);
  return root > 0 ? 2 * room / root : std::numeric_limits<double>::infinity();
}

void CostFit::Information::add(const Information& other, double weight) {
  for (size_t i = 0; i < kCostTerms; ++i) {
    for (size_t j = 0; j < kCostTerms; ++j) products[i][j] += weight * other.products[i][j];
    targets[i] += weight * other.targets[i];
  }
}

// Weighted by 1/t², so that the error which is least is the relative one.
void CostFit::Information::add(const BatchShape& shape, double run_us) {
  const Vector phi = {1, shape.prefill_tokens, shape.prefill_pairs, shape.decode_count, shape.decode_context};
  const double weight = 1 / (run_us * run_us);
  for (size_t i = 0; i < kCostTerms; ++i) {
    for (size_t j = 0; j < kCostTerms; ++j) products[i][j] += weight * phi[i] * phi[j];
    targets[i] += weight * phi[i] * run_us;
  }
}

void CostFit::observe(const BatchShape& shape, double run_us) {
  if (!(run_us > 0)) return;
  if (observations_ >= kFewestObservations) {
    const double predicted = coefficients_.predict_us(shape);
    const bool outlier = run_us > kOutlierRatio * predicted || predicted > kOutlierRatio * run_us;
    outlier_share_ = kErrorMemory * outlier_share_ + (1 - kErrorMemory) * (outlier ? 1 : 0);
    if (outlier) {
      if (outlier_share_ < kLargestOutlierShare) return;
      // So many are no outliers but another stage: what was learnt of the old one is dropped.
      *this = {};
    } else {
      relative_error_ = kErrorMemory * relative_error_ + (1 - kErrorMemory) * std::abs(run_us / predicted - 1);
      const double prompt_share = coefficients_.prompt_us(shape) / predicted;
      prompt_slowness_.add(prompt_share, run_us, predicted);
      other_slowness_.add(1 - prompt_share, run_us, predicted);
    }
  }
  learn(shape, run_us);
}

void CostFit::learn(const BatchShape& shape, double run_us) {
  if (!(run_us > 0)) return;
  Information decayed;
  decayed.add(recent_, kForgetting);
  decayed.add(shape, run_us);
  recent_ = decayed;
  ++observations_;
  solve();
}

void CostFit::anchor() {
  if (observations_ == 0) return;
  anchor_ = {};
  anchor_.add(recent_, kAnchorWeight / static_cast<double>(observations_));
}

// A timing is forgotten as others come that have as much of the same kind of work.
void CostFit::Slowness::add(double share, double run, double predicted) {
  const double kept = std::pow(kErrorMemory, share);
  run_us = kept * run_us + share * run;
  predicted_us = kept * predicted_us + share * predicted;
}

CostCoefficients CostFit::coefficients_lately() const {
  const double prompt = prompt_slowness_.ratio();
  const double other = other_slowness_.ratio();
  return {coefficients_.fixed_us * other, coefficients_.per_token_us * prompt, coefficients_.per_pair_us * prompt,
          coefficients_.per_decode_us * other, coefficients_.per_context_us * other};
}

bool CostFit::usable() const {
  const bool grows = coefficients_.per_token_us > 0 || coefficients_.per_pair_us > 0;
  return observations_ >= kFewestObservations && grows && relative_error_ < kLargestUsableError;
}

// Non-negative least squares by trying every set of non-zero terms: of the sets whose solution is non-negative, the one
// with the least error. 32 sets of at most 5 terms cost a few microseconds.
void CostFit::solve() {
  Information all = recent_;
  all.add(anchor_, 1);
  for (size_t i = 0; i < kCostTerms; ++i) all.products[i][i] *= 1 + kRidge;
  double best_gain = 0;
  Vector best{};
  for (unsigned subset = 1; subset < (1u << kCostTerms); ++subset) {
    Vector solution{};
    if (!solve_subset(all, subset, solution)) continue;
    // At a solution the squared error is Σ w·t² minus this.
    double gain = 0;
    for (size_t i = 0; i < kCostTerms; ++i) gain += all.targets[i] * solution[i];
    if (gain > best_gain) {
      best_gain = gain;
      best = solution;
    }
  }
  coefficients_ = {best[0], best[1], best[2], best[3], best[4]};
}

// Gaussian elimination with pivots on the diagonal: the matrix is symmetric and positive definite.
bool CostFit::solve_subset(const Information& all, unsigned subset, Vector& solution) {
  std::array<size_t, kCostTerms> terms{};
  size_t count = 0;
  for (size_t i = 0; i < kCostTerms; ++i) {
    if ((subset >> i & 1) != 0) terms[count++] = i;
  }
  std::array<Vector, kCostTerms> matrix{};
  Vector right{};
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < count; ++j) matrix[i][j] = all.products[terms[i]][terms[j]];
    right[i] = all.targets[terms[i]];
  }
  for (size_t pivot = 0; pivot < count; ++pivot) {
    if (!(matrix[pivot][pivot] > 0)) return false;
    for (size_t row = pivot + 1; row < count; ++row) {
      const double factor = matrix[row][pivot] / matrix[pivot][pivot];
      for (size_t column = pivot; column < count; ++column) matrix[row][column] -= factor * matrix[pivot][column];
      right[row] -= factor * right[pivot];
    }
  }
  for (size_t row = count; row-- > 0;) {
    double value = right[row];
    for (size_t column = row + 1; column < count; ++column) value -= matrix[row][column] * solution[terms[column]];
    value /= matrix[row][row];
    if (!(value >= 0)) return false;
    solution[terms[row]] = value;
  }
  return true;
}

CostFit& CostModel::fit(StageId stage) {
  if (stage.value() >= stages_.size()) stages_.resize(stage.value() + 1);
  return stages_[stage.value()];
}

void CostModel::anchor() {
  for (CostFit& stage : stages_) stage.anchor();
}

bool CostModel::usable() const {
  return !stages_.empty() && std::ranges::all_of(stages_, &CostFit::usable);
}

double CostModel::slowest_us(const BatchShape& shape) const {
  double slowest = 0;
  for (const CostFit& stage : stages_) slowest = std::max(slowest, stage.coefficients().predict_us(shape));
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

double CostModel::round_us(const BatchShape& all, uint32_t groups, double transit_us, double at_once) const {
  const BatchShape share{.decode_count = std::ceil(all.decode_count / groups),
                         .decode_context = all.decode_context / groups};
  double runs = 0;
  double slowest = 0;
  for (const CostFit& stage : stages_) {
    const double run_us = stage.coefficients().predict_us(share);
    runs += run_us;
    slowest = std::max(slowest, run_us);
  }
  return std::max({transit_us + runs, groups * slowest, groups * runs / at_once});
}

uint32_t CostModel::decode_groups(const BatchShape& all, uint32_t most, double transit_us, double at_once) const {
  const auto round = [&](uint32_t groups) { return round_us(all, groups, transit_us, at_once); };
  double shortest = std::numeric_limits<double>::infinity();
  for (uint32_t groups = 1; groups <= most; ++groups) shortest = std::min(shortest, round(groups));
  uint32_t chosen = most;
  while (chosen > 1 && round(chosen) > kRoundTolerance * shortest) --chosen;
  return chosen;
}

}  // namespace millrace::sched
