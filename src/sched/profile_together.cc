#include "sched/profile_together.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace millrace::sched {
namespace {

/// The fit asks how much a run was slowed down, and how far off each run is, which what it finds says: so it is
/// repeated.
constexpr int kFitPasses = 12;
/// Runs further off than this share of their time count in inverse proportion.
constexpr double kNear = 0.05;
/// For each term one such run that lost nothing: a term that no run has much of stays small.
constexpr double kNothingLost = 0.5;

/// So many plans have every stage at work beside all others at some time.
uint32_t crowd_size(size_t stage_count) {
  return static_cast<uint32_t>(stage_count) + 2;
}

}  // namespace

ProfileTogether::ProfileTogether(const Shapes& shapes, size_t stage_count, size_t window, const SharedMachine& machine)
    : shapes_(shapes), stage_count_(stage_count), window_(window), machine_(machine) {
  const uint32_t size = crowd_size(stage_count);
  if (shapes.decode_count > 0) {
    add_alone(Work::kOpen);
    add_alone(Work::kDecode);
    add_crowd(std::vector(size, Work::kDecode));
    add_alone(Work::kDecode);
  }
  add_alone(Work::kPrompt);
  add_crowd(std::vector(size, Work::kPrompt));
  if (shapes.decode_count > 0) {
    std::vector<Work> both;
    for (uint32_t i = 0; i < size; ++i) both.push_back(i % 2 == 0 ? Work::kDecode : Work::kPrompt);
    add_crowd(both);
    add_alone(Work::kDecode);
  }
  add_alone(Work::kPrompt);
}

void ProfileTogether::add_crowd(const std::vector<Work>& works) {
  for (size_t i = 0; i < works.size(); ++i) steps_.push_back({works[i], false, i == 0});
}

uint32_t ProfileTogether::longest_decode(uint32_t decode_prompt, size_t stage_count) {
  const uint32_t size = crowd_size(stage_count);
  return decode_prompt + 3 + size + (size + 1) / 2;
}

// Another round goes only if it will have ended in time.
bool ProfileTogether::finished() const {
  if (next_step_ > 0 || rounds_.empty()) return false;
  int64_t taken_ns = rounds_.back().length_ns();
  for (const Round& round : rounds_) taken_ns += round.length_ns();
  return rounds_.size() == kMostRounds || taken_ns > kBudgetNs;
}

Plan ProfileTogether::next(uint64_t id, ScratchSequences& sequences) {
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

// The decoding sequences have the first slots, the prompts one after them, each its own sequence in turn.
void ProfileTogether::append(Work work, Plan& plan, ScratchSequences& sequences) {
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

void ProfileTogether::record(const StageReport& report, const BatchShape& shape) {
  const uint64_t plan = report.plan.value();
  for (Round& round : rounds_) {
    const auto found = std::ranges::lower_bound(round.plans, plan);
    if (found == round.plans.end() || *found != plan) continue;
    round.runs.push_back({static_cast<size_t>(found - round.plans.begin()),
                          {report.stage, plan, shape, report.begin_ns, report.end_ns}});
  }
}

int64_t ProfileTogether::Round::length_ns() const {
  int64_t begin = std::numeric_limits<int64_t>::max();
  int64_t end = std::numeric_limits<int64_t>::min();
  for (const TimedRun& timed : runs) {
    begin = std::min(begin, timed.run.begin_ns);
    end = std::max(end, timed.run.end_ns);
  }
  return runs.empty() ? 0 : end - begin;
}

/// Mean time of such a micro-batch alone, in this round; 0: there was none. Contexts differ by a few tokens only.
double ProfileTogether::alone_us(const Round& round, Work work, StageId stage) const {
  double sum = 0;
  double count = 0;
  for (const TimedRun& timed : round.runs) {
    const Step& step = steps_[timed.step];
    if (!step.alone || step.work != work || timed.run.stage != stage) continue;
    sum += 1e-3 * static_cast<double>(timed.run.end_ns - timed.run.begin_ns);
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

// Of its time with the processors that it wants, a run lost 1 − alone / time to its neighbours, which is the sum of
// contention · beside over the kinds of work (Sharing::Alone). The smallest sum of distances to all runs of all rounds
// (iteratively reweighted least squares): what else the machine does now and then is not to count.
Contention ProfileTogether::contention(const CostModel& costs) const {
  SharedMachine machine = machine_;
  machine.contention = {};
  for (int pass = 0; pass < kFitPasses; ++pass) {
    NonNegativeLeastSquares<4> fit;
    for (size_t term = 0; term < 4; ++term) {
      std::array<double, 4> one{};
      one[term] = kNothingLost;
      fit.add(one, 0, 1 / kNear);
    }
    for (const Round& round : rounds_) {
      if (round.runs.size() < steps_.size() * stage_count_) continue;
      for (const Loss& loss : losses_of(round, costs, machine)) {
        const double off = pass > 0 ? std::abs(loss.part - loss.by(machine.contention)) : 0;
        fit.add(loss.beside, loss.part, 1 / std::max(off, kNear));
      }
    }
    const auto found = fit.solve();
    const auto bounded = [&](size_t term) { return std::min(found[term], kMostContention); };
    machine.contention = {bounded(0), bounded(1), bounded(2), bounded(3)};
  }
  return machine.contention;
}

std::vector<ProfileTogether::Loss> ProfileTogether::losses_of(const Round& round, const CostModel& costs,
                                                              const SharedMachine& machine) const {
  std::vector<Loss> losses;
  Sharing sharing(stage_count_, window_, machine);
  const auto take = [&](const std::vector<Sharing::Alone>& settled) {
    for (const Sharing::Alone& run : settled) {
      const double known_us = alone_us(round, run.shape.decode_count > 0 ? Work::kDecode : Work::kPrompt, run.stage);
      if (known_us <= 0 || run.processor_us <= 0 || run.beside_prompt + run.beside_other <= 0) continue;
      const double prompt = run.prompt_share;
      losses.push_back({{prompt * run.beside_prompt, prompt * run.beside_other, (1 - prompt) * run.beside_prompt,
                         (1 - prompt) * run.beside_other},
                        1 - known_us / run.processor_us});
    }
  };
  for (const TimedRun& timed : round.runs) {
    Sharing::Run run = timed.run;
    run.prompt_share = costs.prompt_share(run.stage, *run.shape);
    take(sharing.add(run));
  }
  take(sharing.finish());
  return losses;
}

double ProfileTogether::Loss::by(const Contention& contention) const {
  return beside[0] * contention.prompt_by_prompt + beside[1] * contention.prompt_by_other +
         beside[2] * contention.other_by_prompt + beside[3] * contention.other_by_other;
}

}  // namespace millrace::sched
