#include "sched/profile_together.h"

#include <algorithm>
#include <limits>

namespace millrace::sched {
namespace {

/// The fit asks how much a run was slowed down, which what it finds says: so it is repeated.
constexpr int kFitRounds = 12;

/// Shortest time of such a micro-batch alone; 0: it was not timed. Contexts differ by a few tokens only.
double alone_us(const std::vector<ProfileTiming>& alone, StageId stage, const BatchShape& shape) {
  double shortest = 0;
  for (const ProfileTiming& timing : alone) {
    const bool same = timing.stage == stage && timing.shape.prefill_tokens == shape.prefill_tokens &&
                      timing.shape.prefill_pairs == shape.prefill_pairs &&
                      timing.shape.decode_count == shape.decode_count;
    if (same && (shortest == 0 || timing.run_us < shortest)) shortest = timing.run_us;
  }
  return shortest;
}

}  // namespace

ProfileTogether::ProfileTogether(const Shapes& shapes, size_t stage_count, size_t window, const SharedMachine& machine)
    : shapes_(shapes), stage_count_(stage_count), window_(window), machine_(machine) {
  std::vector<Kind> kinds = {Kind::kPrompts};
  if (shapes.decode_count > 0) kinds = {Kind::kPrompts, Kind::kDecodes, Kind::kBoth};
  kinds_ = kinds.size();
  for (size_t round = 0; round < kRounds; ++round) {
    for (const Kind kind : kinds) bursts_.push_back({kind});
  }
}

void ProfileTogether::stop_after_round() {
  const size_t begun = (next_burst_ + (next_place_ > 0 ? 1 : 0) + kinds_ - 1) / kinds_;
  bursts_.resize(std::min(bursts_.size(), std::max<size_t>(begun, 1) * kinds_));
}

// The decoding sequences have the first slots, the prompts one after them, each its own sequence in turn.
Plan ProfileTogether::next(uint64_t id, ScratchSequences& sequences) {
  Burst& burst = bursts_[next_burst_];
  const uint32_t place = next_place_++;
  if (next_place_ == plans_per_burst(stage_count_)) {
    ++next_burst_;
    next_place_ = 0;
  }
  Plan plan;
  const bool decodes = burst.kind != Kind::kPrompts;
  if (place == 0) {
    burst.first_plan = id;
    sequences.close_all(plan);
    for (uint32_t i = 0; decodes && i < shapes_.decode_count; ++i) sequences.open(plan, shapes_.decode_prompt);
  }
  const bool prompts = burst.kind == Kind::kPrompts || (burst.kind == Kind::kBoth && place % 2 == 1);
  if (!prompts) {
    const uint32_t tokens = place == 0 ? shapes_.decode_prompt : 1;
    for (uint32_t slot = 0; slot < shapes_.decode_count; ++slot) sequences.append(plan, slot, tokens);
    return plan;
  }
  const uint32_t slot = decodes ? shapes_.decode_count : 0;
  if (place == (decodes ? 1 : 0)) {
    sequences.open(plan, shapes_.prompt_tokens);
  } else {
    sequences.reopen(plan, slot, shapes_.prompt_tokens);
  }
  sequences.append(plan, slot, shapes_.prompt_tokens);
  return plan;
}

void ProfileTogether::record(const StageReport& report, const BatchShape& shape) {
  const uint64_t plan = report.plan.value();
  for (size_t i = 0; i < bursts_.size() && i <= next_burst_; ++i) {
    Burst& burst = bursts_[i];
    const bool begun = i < next_burst_ || next_place_ > 0;
    if (!begun || plan < burst.first_plan || plan >= burst.first_plan + plans_per_burst(stage_count_)) continue;
    burst.runs.push_back({report.stage, plan, shape, report.begin_ns, report.end_ns});
  }
}

int64_t ProfileTogether::Burst::length_ns() const {
  int64_t begin = std::numeric_limits<int64_t>::max();
  int64_t end = 0;
  for (const Sharing::Run& run : runs) {
    begin = std::min(begin, run.begin_ns);
    end = std::max(end, run.end_ns);
  }
  return end - begin;
}

/// Of each kind the burst that took least time, of those whose reports are all there.
std::vector<const ProfileTogether::Burst*> ProfileTogether::quickest() const {
  std::vector<const Burst*> chosen(kinds_);
  for (size_t i = 0; i < bursts_.size(); ++i) {
    if (bursts_[i].runs.size() < plans_per_burst(stage_count_) * stage_count_) continue;
    const Burst*& best = chosen[i % kinds_];
    if (best == nullptr || bursts_[i].length_ns() < best->length_ns()) best = &bursts_[i];
  }
  std::erase(chosen, nullptr);
  return chosen;
}

// Of its time with the processors that it wants, a run lost 1 − alone / time to its neighbours, which is the sum of
// contention · beside over the kinds of work (Sharing::Alone).
Contention ProfileTogether::contention(const std::vector<ProfileTiming>& alone, const CostModel& costs) const {
  SharedMachine machine = machine_;
  machine.contention = {};
  const std::vector<const Burst*> bursts = quickest();
  for (int round = 0; round < kFitRounds; ++round) {
    NonNegativeLeastSquares<4> fit;
    for (const Burst* burst : bursts) {
      Sharing sharing(stage_count_, window_, machine);
      const auto take = [&](const std::vector<Sharing::Alone>& settled) {
        for (const Sharing::Alone& run : settled) {
          const double known_us = alone_us(alone, run.stage, run.shape);
          if (known_us <= 0 || run.processor_us <= 0) continue;
          const double prompt = run.prompt_share;
          fit.add({prompt * run.beside_prompt, prompt * run.beside_other, (1 - prompt) * run.beside_prompt,
                   (1 - prompt) * run.beside_other},
                  1 - known_us / run.processor_us, 1);
        }
      };
      for (Sharing::Run run : burst->runs) {
        run.prompt_share = costs.prompt_share(run.stage, *run.shape);
        take(sharing.add(run));
      }
      take(sharing.finish());
    }
    const auto found = fit.solve();
    const auto bounded = [&](size_t term) { return std::min(found[term], kMostContention); };
    machine.contention = {bounded(0), bounded(1), bounded(2), bounded(3)};
  }
  return machine.contention;
}

}  // namespace millrace::sched
