#include "sched/scheduler/contention_profiler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace millrace::sched {
namespace {

/// Both the overlaps and the weights of the fit depend on the contention that it finds: so it is repeated.
constexpr int kContentionFitPasses = 12;
/// Losses that are further off the fit than this share of the time count in inverse proportion to their distance.
constexpr double kMinLossResidual = 0.05;
/// Overlap of an invented run per term that lost nothing: a term of which no run has much stays small.
constexpr double kZeroLossWeight = 0.5;

/// Returns a number of plans with which all stages compute at the same time for a while.
uint32_t burst_size(size_t stage_count) {
  return static_cast<uint32_t>(stage_count) + 2;
}

}  // namespace

ContentionProfiler::ContentionProfiler(const Shapes& shapes, size_t stage_count, size_t window,
                                       const SharedMachine& machine)
    : shapes_(shapes), stage_count_(stage_count), window_(window), machine_(machine) {
  const uint32_t size = burst_size(stage_count);
  if (shapes.decode_count > 0) {
    add_isolated(Work::kOpen);
    add_isolated(Work::kDecode);
    add_burst(std::vector(size, Work::kDecode));
    add_isolated(Work::kDecode);
  }
  add_isolated(Work::kPrompt);
  add_burst(std::vector(size, Work::kPrompt));
  if (shapes.decode_count > 0) {
    std::vector<Work> both;
    for (uint32_t i = 0; i < size; ++i) both.push_back(i % 2 == 0 ? Work::kDecode : Work::kPrompt);
    add_burst(both);
    add_isolated(Work::kDecode);
  }
  add_isolated(Work::kPrompt);
}

void ContentionProfiler::add_burst(const std::vector<Work>& works) {
  ++burst_count_;
  for (size_t i = 0; i < works.size(); ++i) steps_.push_back({works[i], burst_count_, i == 0});
}

uint32_t ContentionProfiler::longest_decode(uint32_t decode_prompt, size_t stage_count) {
  const uint32_t size = burst_size(stage_count);
  return decode_prompt + 3 + size + (size + 1) / 2;
}

// Another round is begun only if it will end in time.
bool ContentionProfiler::finished() const {
  if (next_step_ > 0 || rounds_.empty()) return false;
  int64_t taken_ns = rounds_.back().length_ns();
  for (const Round& round : rounds_) taken_ns += round.length_ns();
  return rounds_.size() == kMaxRounds || taken_ns > kBudgetNs;
}

Plan ContentionProfiler::next(uint64_t id, DummySequences& sequences) {
  Plan plan;
  if (next_step_ == 0) {
    sequences.close_all(plan);
    rounds_.emplace_back();
    has_prompt_ = false;
  }
  rounds_.back().plans.push_back(id);
  append(steps_[next_step_].work, plan, sequences);
  next_step_ = (next_step_ + 1) % steps_.size();
  return plan;
}

// The decoding sequences have the first slots. All prompts use the slot after them, each as a new sequence.
void ContentionProfiler::append(Work work, Plan& plan, DummySequences& sequences) {
  const uint32_t decodes = shapes_.decode_count;
  if (work == Work::kPrompt) {
    if (has_prompt_) {
      sequences.reopen(plan, decodes, shapes_.prompt_tokens);
    } else {
      sequences.open(plan, shapes_.prompt_tokens);
    }
    has_prompt_ = true;
    sequences.append(plan, decodes, shapes_.prompt_tokens);
    return;
  }
  const uint32_t tokens = work == Work::kOpen ? shapes_.decode_prompt : 1;
  for (uint32_t slot = 0; slot < decodes; ++slot) {
    if (work == Work::kOpen) sequences.open(plan, shapes_.decode_prompt);
    sequences.append(plan, slot, tokens);
  }
}

void ContentionProfiler::record(const StageReport& report, const BatchShape& shape) {
  const uint64_t plan = report.plan.value();
  for (Round& round : rounds_) {
    if (!round.step_of(plan)) continue;
    round.runs.push_back(
        {.stage = report.stage, .plan = plan, .shape = shape, .begin_ns = report.begin_ns, .end_ns = report.end_ns});
  }
}

std::optional<size_t> ContentionProfiler::Round::step_of(uint64_t plan) const {
  const auto found = std::ranges::lower_bound(plans, plan);
  if (found == plans.end() || *found != plan) return std::nullopt;
  return static_cast<size_t>(found - plans.begin());
}

int64_t ContentionProfiler::Round::length_ns() const {
  int64_t begin = std::numeric_limits<int64_t>::max();
  int64_t end = std::numeric_limits<int64_t>::min();
  for (const ContentionEstimator::Run& run : runs) {
    begin = std::min(begin, run.begin_ns);
    end = std::max(end, run.end_ns);
  }
  return runs.empty() ? 0 : end - begin;
}

/// Returns the mean time of such a micro-batch alone in this round; 0: there was none. Contexts differ by a few tokens
/// only.
double ContentionProfiler::isolated_us(const Round& round, Work work, StageId stage) const {
  double sum = 0;
  double count = 0;
  for (const ContentionEstimator::Run& run : round.runs) {
    const Step& step = steps_[*round.step_of(run.plan)];
    if (step.burst != kIsolated || step.work != work || run.stage != stage) continue;
    sum += 1e-3 * static_cast<double>(run.end_ns - run.begin_ns);
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

// A run lost the share 1 − alone / time of its processor time to its neighbours. That is the sum of contention ·
// overlap over the kinds of work (ContentionEstimator::IsolatedRun). All runs of a burst are summed, since the system
// shares processors unevenly: of three runs on two processors one may have a whole processor, but together they have
// both. Iteratively reweighted least squares finds the smallest sum of absolute distances over the bursts of all
// rounds. Other load on the machine now and then counts little by it.
Contention ContentionProfiler::contention(const CostModel& costs) const {
  SharedMachine machine = machine_;
  machine.contention = {};
  for (int pass = 0; pass < kContentionFitPasses; ++pass) {
    NonNegativeLeastSquares<4> fit;
    for (size_t term = 0; term < 4; ++term) {
      std::array<double, 4> one{};
      one[term] = kZeroLossWeight;
      fit.add(one, 0, 1 / kMinLossResidual);
    }
    for (const Round& round : rounds_) {
      if (round.runs.size() < steps_.size() * stage_count_) continue;
      for (const OverlapLoss& loss : losses_of(round, costs, machine)) {
        const double off = pass > 0 ? std::abs(loss.part - loss.predicted_by(machine.contention)) : 0;
        fit.add(loss.overlap, loss.part, loss.runs / std::max(off, kMinLossResidual));
      }
    }
    const auto found = fit.solve();
    const auto bounded = [&](size_t term) { return std::min(found[term], kMaxContention); };
    machine.contention = {bounded(0), bounded(1), bounded(2), bounded(3)};
  }
  return machine.contention;
}

std::vector<ContentionProfiler::OverlapLoss> ContentionProfiler::losses_of(const Round& round, const CostModel& costs,
                                                                           const SharedMachine& machine) const {
  struct Sum {
    std::array<double, 4> overlap_us{};
    double isolated_us = 0;
    double processor_us = 0;
    double runs = 0;
  };
  std::map<std::pair<size_t, Work>, Sum> sums;
  ContentionEstimator estimator(stage_count_, window_, machine);
  const auto take = [&](const std::vector<ContentionEstimator::IsolatedRun>& settled) {
    for (const ContentionEstimator::IsolatedRun& run : settled) {
      const Step& step = steps_[*round.step_of(run.plan)];
      const double known_us = isolated_us(round, step.work, run.stage);
      if (step.burst == kIsolated || known_us <= 0 || run.processor_us <= 0) continue;
      Sum& sum = sums[{step.burst, step.work}];
      const double prompt_us = run.prompt_share * run.processor_us;
      const double other_us = run.processor_us - prompt_us;
      sum.overlap_us[0] += prompt_us * run.prompt_overlap;
      sum.overlap_us[1] += prompt_us * run.other_overlap;
      sum.overlap_us[2] += other_us * run.prompt_overlap;
      sum.overlap_us[3] += other_us * run.other_overlap;
      sum.isolated_us += known_us;
      sum.processor_us += run.processor_us;
      ++sum.runs;
    }
  };
  for (ContentionEstimator::Run run : round.runs) {
    run.prompt_share = costs.prompt_share(run.stage, *run.shape);
    take(estimator.add(run));
  }
  take(estimator.finish());
  std::vector<OverlapLoss> losses;
  for (const auto& [burst_and_work, sum] : sums) {
    OverlapLoss loss{{}, 1 - sum.isolated_us / sum.processor_us, sum.runs};
    for (size_t term = 0; term < 4; ++term) loss.overlap[term] = sum.overlap_us[term] / sum.processor_us;
    losses.push_back(loss);
  }
  return losses;
}

double ContentionProfiler::OverlapLoss::predicted_by(const Contention& contention) const {
  return overlap[0] * contention.prompt_by_prompt + overlap[1] * contention.prompt_by_other +
         overlap[2] * contention.other_by_prompt + overlap[3] * contention.other_by_other;
}

}  // namespace millrace::sched
