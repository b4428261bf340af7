#include "sched/scheduler/cost_fit.h"

#include <algorithm>
#include <cmath>

namespace millrace::sched {
namespace {

/// Weight that an observation keeps from one to the next: about 500 count.
constexpr double kFitDecay = 0.998;
/// The prior of each term counts as much as this many recent observations.
constexpr double kPriorWeight = 5;
/// Weight that the prior keeps from one timing made of that term alone to the next: about 50 count.
constexpr double kPriorForgetting = 0.98;
/// A timing of which a term is a smaller part says more of the noise than of that term.
constexpr double kMinTermPart = 0.1;
constexpr uint64_t kMinObservations = 8;
constexpr double kOutlierRatio = 3;
/// Share of outliers in the last timings at which the fit starts over: eight in a row, or every third timing.
constexpr double kMaxOutlierShare = 0.33;
constexpr double kErrorDecay = 0.95;
constexpr double kMaxUsableError = 0.5;

}  // namespace

// The weight 1/t² minimises the relative error.
void CostFit::add(const BatchShape& shape, double run_us, double weight, Information& information) {
  information.add(shape.terms(), run_us, weight / (run_us * run_us));
}

void CostFit::observe(const BatchShape& shape, double run_us) {
  if (!(run_us > 0)) return;
  if (fallback_fit_) {
    const double expected = fallback_fit_->coefficients.predict_us(shape);
    fallback_fit_->since.add(fallback_fit_->coefficients, shape,
                             std::clamp(run_us, expected / kOutlierRatio, expected * kOutlierRatio));
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

// Outliers are counted among all timings, and for each kind of work by itself: else a rare kind could stay wrong.
void CostFit::count_outlier(bool outlier, double prompt_share) {
  const std::array<double, 3> parts = {1, prompt_share, 1 - prompt_share};
  for (size_t kind = 0; kind < parts.size(); ++kind) {
    outlier_shares_[kind] += (1 - kErrorDecay) * parts[kind] * ((outlier ? 1 : 0) - outlier_shares_[kind]);
  }
}

// What a timing says of a term's relative size grows with the square of that term's part in it: it replaces that much
// of the term's prior.
void CostFit::update_prior(const BatchShape& shape, double run_us) {
  std::array<double, kCostTerms> term_parts = coefficients_.terms_us(shape);
  const double min_part = kMinTermPart * coefficients_.predict_us(shape);
  double all = 0;
  for (double& part : term_parts) {
    part = part < min_part ? 0 : part * part;
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

// A term that is small or 0 by mistake has no part in any timing. What a timing may still say of it is how much the
// term stands out there, compared with its prior.
double CostFit::off_model_share(size_t term, const BatchShape& shape) const {
  const double stands_out = shape.terms()[term] / coefficients_.predict_us(shape);
  if (!(stands_out > 0)) return 0;
  const double ratio = stands_out * stands_out * kPriorWeight / prior_[term].square(term);
  return ratio >= kMinTermPart * kMinTermPart ? std::min(ratio, 1.0) : 0;
}

// Many outliers are none, but a stage that has changed: the fit of the old one is dropped.
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

// Each timing fades out as others come that have as much of the same kind of work.
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
  return {.fixed_us = known.fixed_us * other.ratio(),
          .per_token_us = known.per_token_us * prompt.ratio(),
          .per_pair_us = known.per_pair_us * prompt.ratio(),
          .per_decode_us = known.per_decode_us * other.ratio(),
          .per_context_us = known.per_context_us * other.ratio()};
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
  coefficients_ = {.fixed_us = found[0],
                   .per_token_us = found[1],
                   .per_pair_us = found[2],
                   .per_decode_us = found[3],
                   .per_context_us = found[4]};
}

}  // namespace millrace::sched
