#include "sched/profile_together.h"

#include <algorithm>
#include <array>
#include <limits>

namespace millrace::sched {
namespace {

/// The fit asks how much a run was slowed down, which what it finds says: so it is repeated.
constexpr int kFitRounds = 12;
/// So many rounds are run unless they take kLongestNs: of fewer the median is no protection.
constexpr size_t kFewestRounds = 3;
constexpr int64_t kLongestNs = 6'000'000'000;

/// So many plans have every stage at work beside all others at some time.
uint32_t crowd_size(size_t stage_count) {
  return static_cast<uint32_t>(stage_count) + 2;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
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

bool ProfileTogether::finished() const {
  if (next_step_ > 0 || rounds_.empty()) return false;
  int64_t taken_ns = 0;
  for (const Round& round : rounds_) taken_ns += round.length_ns();
  return rounds_.size() == kMostRounds || taken_ns >= (rounds_.size() < kFewestRounds ? kLongestNs : kLongEnoughNs);
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
// contention · beside over the kinds of work (Sharing::Alone).
Contention ProfileTogether::contention_of(const Round& round, const CostModel& costs) const {
  SharedMachine machine = machine_;
  machine.contention = {};
  for (int pass = 0; pass < kFitRounds; ++pass) {
    NonNegativeLeastSquares<4> fit;
    Sharing sharing(stage_count_, window_, machine);
    const auto take = [&](const std::vector<Sharing::Alone>& settled) {
      for (const Sharing::Alone& run : settled) {
        const double known_us = alone_us(round, run.shape.decode_count > 0 ? Work::kDecode : Work::kPrompt, run.stage);
        if (known_us <= 0 || run.processor_us <= 0 || run.beside_prompt + run.beside_other <= 0) continue;
        const double prompt = run.prompt_share;
        fit.add({prompt * run.beside_prompt, prompt * run.beside_other, (1 - prompt) * run.beside_prompt,
                 (1 - prompt) * run.beside_other},
                1 - known_us / run.processor_us, 1);
      }
    };
    for (const TimedRun& timed : round.runs) {
      Sharing::Run run = timed.run;
      run.prompt_share = costs.prompt_share(run.stage, *run.shape);
      take(sharing.add(run));
    }
    take(sharing.finish());
    const auto found = fit.solve();
    const auto bounded = [&](size_t term) { return std::min(found[term], kMostContention); };
    machine.contention = {bounded(0), bounded(1), bounded(2), bounded(3)};
  }
  return machine.contention;
}

Contention ProfileTogether::contention(const CostModel& costs) const {
  std::array<std::vector<double>, 4> found;
  for (const Round& round : rounds_) {
    if (round.runs.size() < steps_.size() * stage_count_) continue;
    const Contention one = contention_of(round, costs);
    found[0].push_back(one.prompt_by_prompt);
    found[1].push_back(one.prompt_by_other);
    found[2].push_back(one.other_by_prompt);
    found[3].push_back(one.other_by_other);
  }
  if (found[0].empty()) return {};
  return {median(found[0]), median(found[1]), median(found[2]), median(found[3])};
}

}  // namespace millrace::sched
