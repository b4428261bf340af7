#include "sched/profile.h"

#include <algorithm>

namespace millrace::sched {
namespace {

constexpr uint32_t kPromptOfDecodes = 16;
constexpr uint32_t kMostDecodes = 32;
/// The shortest prompt timed, as a part of the largest chunk: 1 / kShortestPart.
constexpr uint32_t kShortestPart = 4;
/// A prompt that is timed beside others takes the slowest stage about so long alone, but has at least so many tokens.
constexpr double kCrowdRunUs = 150'000;
constexpr uint32_t kLeastCrowdPrompt = 128;
/// Tokens that the sequences of the decode steps timed beside others begin with.
constexpr uint32_t kCrowdDecodePrompt = 4;

}  // namespace

Profile::Profile(const ProfileBounds& bounds) : bounds_(bounds), scratch_(bounds.page_size, bounds.vocab_size) {
  add_prefills();
  add_decodes();
  for (size_t round = 0; round < kRounds; ++round) {
    if (round >= kFewestRounds) rounds_.push_back(order_.size());
    for (size_t step = 0; step < steps_.size(); ++step) {
      if (round == 0 || (steps_[step].counts && !steps_[step].once)) order_.push_back(step);
    }
  }
}

uint32_t Profile::longest_prompt() const {
  return std::max(1u, std::min(bounds_.chunk_size, bounds_.context_length - 1));
}

// Chunks after a prefix are as long as half the largest, as far as one sequence goes; they go on from the prompt before
// them, which is the largest in every round.
void Profile::add_prefills() {
  const uint32_t longest = longest_prompt();
  const uint32_t longest_sample = std::min(bounds_.longest_sample, bounds_.context_length - 1);
  steps_.push_back({.tokens = longest, .fresh = true, .counts = false});
  for (uint32_t sample = 1; sample <= bounds_.prompt_samples; ++sample) {
    const uint64_t length = uint64_t{longest_sample} * sample / bounds_.prompt_samples;
    steps_.push_back({.tokens = std::max(1u, static_cast<uint32_t>(length)), .fresh = true, .once = true});
  }
  for (const uint32_t part : {kShortestPart, 2u, 1u}) {
    steps_.push_back({.tokens = std::max(1u, longest / part), .fresh = true});
  }
  const uint32_t half = std::max(1u, longest / 2);
  uint32_t length = longest;
  for (int chunk = 0; chunk < 3 && length + half + 2 < bounds_.context_length; ++chunk) {
    steps_.push_back({.tokens = half});
    length += half;
  }
  for (int step = 0; step < 2 && length + 1 < bounds_.context_length; ++step) {
    steps_.push_back({.tokens = 1});
    ++length;
  }
}

void Profile::add_decodes() {
  const uint32_t prompt = std::min({kPromptOfDecodes, bounds_.chunk_size, std::max(1u, bounds_.context_length / 2)});
  const uint32_t pages_each = (prompt + 2 + bounds_.page_size - 1) / bounds_.page_size;
  const uint32_t most =
      std::min({bounds_.max_running, kMostDecodes, bounds_.chunk_size / prompt, bounds_.page_count / pages_each});
  if (prompt + 2 >= bounds_.context_length) return;
  most_decodes_ = most;
  for (const uint32_t count : {most, most / 2}) {
    if (count == 0) continue;
    steps_.push_back({.sequences = count, .tokens = prompt, .fresh = true});
    for (int step = 0; step < 2; ++step) steps_.push_back({.sequences = count, .tokens = 1});
  }
}

// Of the prompts timed alone at such a length, the slowest stage's.
double Profile::slowest_us(uint32_t prompt_tokens) const {
  double slowest = 0;
  for (const Step& step : steps_) {
    if (!step.counts || !step.fresh || step.sequences != 1 || step.tokens != prompt_tokens) continue;
    for (const ProfileTiming& timing : step.best) slowest = std::max(slowest, timing.run_us);
  }
  return slowest;
}

// A prompt of the shortest length timed alone, or of less where that takes long; decode steps if there is room for
// them.
void Profile::begin_together() {
  const uint32_t shortest = std::max(1u, longest_prompt() / kShortestPart);
  const double part = std::min(1.0, kCrowdRunUs / std::max(slowest_us(shortest), 1.0));
  const auto tokens = static_cast<uint32_t>(part * shortest);
  ProfileTogether::Shapes shapes{.prompt_tokens = std::clamp(tokens, std::min(shortest, kLeastCrowdPrompt), shortest)};
  const uint32_t longest = ProfileTogether::longest_decode(kCrowdDecodePrompt, bounds_.stage_count);
  const auto pages = [&](uint32_t length) { return (length + bounds_.page_size - 1) / bounds_.page_size; };
  const uint32_t count = std::min(most_decodes_ / 2, bounds_.chunk_size / kCrowdDecodePrompt);
  const uint64_t wanted = uint64_t{count} * pages(longest) + pages(shapes.prompt_tokens);
  if (longest < bounds_.context_length && count < bounds_.max_running && wanted <= bounds_.page_count) {
    shapes.decode_count = count;
    shapes.decode_prompt = kCrowdDecodePrompt;
  }
  together_.emplace(shapes, bounds_.stage_count, bounds_.window, *bounds_.machine);
}

std::optional<Plan> Profile::next(uint64_t id) {
  if (closed_) return std::nullopt;
  if (run_us_ > kLongEnoughUs && std::ranges::binary_search(rounds_, next_step_)) order_.resize(next_step_);
  if (!alone_ended()) {
    ids_.push_back(id);
    return next_alone();
  }
  if (!together_ && bounds_.stage_count > 1 && bounds_.machine) begin_together();
  if (together_ && !together_->finished()) return together_->next(id, scratch_);
  closed_ = true;
  Plan plan;
  scratch_.close_all(plan);
  return plan;
}

Plan Profile::next_alone() {
  Plan plan;
  const Step& step = steps_[order_[next_step_++]];
  if (step.fresh) {
    scratch_.close_all(plan);
    for (uint32_t slot = 0; slot < step.sequences; ++slot) scratch_.open(plan, step.tokens);
  }
  for (uint32_t slot = 0; slot < step.sequences; ++slot) scratch_.append(plan, slot, step.tokens);
  return plan;
}

void Profile::record(const StageReport& report, const BatchShape& shape) {
  const double run_us = static_cast<double>(report.run_ns()) * 1e-3;
  const auto found = std::ranges::lower_bound(ids_, report.plan.value());
  if (found == ids_.end() || *found != report.plan.value()) {
    if (together_) together_->record(report, shape);
    return;
  }
  run_us_ += run_us;
  std::vector<ProfileTiming>& best = steps_[order_[static_cast<size_t>(found - ids_.begin())]].best;
  const size_t stage = report.stage.value();
  if (best.size() <= stage) best.resize(stage + 1);
  ProfileTiming& timing = best[stage];
  if (timing.run_us == 0 || run_us < timing.run_us) timing = {report.stage, shape, run_us};
}

std::vector<ProfileTiming> Profile::timings() const {
  std::vector<ProfileTiming> all;
  for (const size_t index : order_) {
    const Step& step = steps_[index];
    if (!step.counts) continue;
    for (const ProfileTiming& timing : step.best) {
      if (timing.run_us > 0) all.push_back(timing);
    }
  }
  return all;
}

Contention Profile::contention(const CostModel& costs) const {
  return together_ ? together_->contention(costs) : Contention{};
}

}  // namespace millrace::sched
