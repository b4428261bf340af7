#include "sched/scheduler/startup_profiler.h"

#include <algorithm>
#include <array>

#include "cache/pool_division.h"

namespace millrace::sched {
namespace {

/// Tokens of the probes, which tell how long the other prompts may be. The first one touches the weights, so that its
/// time means nothing. Those of one token let the stages report the probe before, since all but the last do so a plan
/// later.
constexpr std::array<uint32_t, 7> kProbes = {16, 16, 1, 64, 1, 256, 1};
constexpr size_t kMinProbes = 3;
/// Probes that would take a larger part of the budget are left out.
constexpr double kMaxBudgetShare = 1.0 / 4;
/// Prefixes, in longest prompts, of the chunks of half a longest prompt.
constexpr std::array<uint32_t, 2> kPrefixes = {4, 8};
/// Cost of a round's prompts, in longest prompts: their tokens, and about one more for attention to prefixes.
constexpr double kRoundPrompts = 1.0 / 4 + 1.0 / 2 + 1 + 2.0 / 2 + 1;
constexpr double kRoundPlans = 13;
/// The longest prompt is never shorter: it must tell the cost of tokens from that of reading the weights.
constexpr uint32_t kMinLongestPrompt = 64;
constexpr uint32_t kDecodePromptTokens = 4;
constexpr uint32_t kMaxDecodes = 32;
/// Time that a burst's prompt takes the slowest stage alone, about, and its smallest number of tokens.
constexpr double kBurstRunUs = 40'000;
constexpr uint32_t kMinBurstPrompt = 32;

}  // namespace

StartupProfiler::StartupProfiler(const StartupProfilerOptions& bounds)
    : bounds_(bounds), dummies_(bounds.page_size, bounds.vocab_size, bounds.sample, bounds.windows) {}

// Adds the next probe or the next round; nothing if all plans of stages alone were made.
void StartupProfiler::extend() {
  if (rounds_ == 0) {
    if (const uint32_t tokens = next_probe(); tokens > 0) {
      steps_.push_back({.tokens = tokens, .fresh = true, .is_recorded = false});
      order_.push_back(probes_++);
      return;
    }
    longest_ = affordable_prompt();
    add_prefills();
    add_decodes();
  } else if (rounds_ == kRounds || run_us_ + round_us_ > kBudgetUs) {
    return;
  }
  for (size_t step = probes_; step < steps_.size(); ++step) {
    if (rounds_ == 0 || !steps_[step].first_round_only) order_.push_back(step);
  }
  ++rounds_;
  round_us_ = 0;
}

// Returns the tokens of the next probe; 0: none is worth its time.
uint32_t StartupProfiler::next_probe() const {
  const uint32_t max_tokens = std::min(bounds_.chunk_size, bounds_.context_length - 1);
  if (probes_ == kProbes.size() || kProbes[probes_] > max_tokens) return 0;
  return probes_ < kMinProbes || probed_us(1, kProbes[probes_]) <= kMaxBudgetShare * kBudgetUs ? kProbes[probes_] : 0;
}

// Predicts the time of plans with `tokens` prompt tokens in all, summed over the stages, from the shortest and the
// longest probe of each: without attention, longer prompts cost no more per token.
double StartupProfiler::probed_us(double plans, double tokens) const {
  double us = 0;
  for (const auto& [shortest, longest] : probe_timings_) {
    if (longest.tokens == 0) continue;
    const double more = longest.tokens - shortest.tokens;
    const double token_us = more > 0 ? std::max(0.0, longest.us - shortest.us) / more : longest.us / longest.tokens;
    us += plans * std::max(0.0, shortest.us - token_us * shortest.tokens) + token_us * tokens;
  }
  return us;
}

// Returns the longest prompt that keeps the budget: the largest chunk, a half of it, a quarter and so on.
uint32_t StartupProfiler::affordable_prompt() const {
  uint32_t longest = std::max(1u, std::min(bounds_.chunk_size, bounds_.context_length - 1));
  const auto expected_us = [&] {
    const double decode_tokens = 1.5 * max_decodes(longest) * kDecodePromptTokens;
    return probed_us(kRoundPlans, kRoundPrompts * longest + decode_tokens);
  };
  while (longest / 2 >= kMinLongestPrompt && run_us_ + expected_us() > kBudgetUs) longest /= 2;
  return longest;
}

// The decode steps of one sequence continue the chunk after the longest prefix.
void StartupProfiler::add_prefills() {
  const uint32_t longest_sample = std::min(bounds_.longest_sample, bounds_.context_length - 1);
  for (uint32_t sample = 1; sample <= bounds_.prompt_samples; ++sample) {
    const uint64_t length = uint64_t{longest_sample} * sample / bounds_.prompt_samples;
    steps_.push_back({.tokens = std::max(1u, static_cast<uint32_t>(length)), .fresh = true, .first_round_only = true});
  }
  for (const uint32_t part : {4u, 2u, 1u}) {
    steps_.push_back({.tokens = std::max(1u, longest_ / part), .fresh = true});
  }
  const uint32_t half = std::max(1u, longest_ / 2);
  uint32_t length = longest_;
  for (const uint32_t times : kPrefixes) {
    if (half + 2 >= bounds_.context_length) break;
    const uint32_t prefix = std::min<uint64_t>(uint64_t{times} * longest_, bounds_.context_length - half - 2);
    steps_.push_back({.tokens = half, .cached_prefix = prefix, .fresh = true});
    length = prefix + half;
  }
  for (int step = 0; step < 2 && length + 1 < bounds_.context_length; ++step) {
    steps_.push_back({.tokens = 1});
    ++length;
  }
}

// Returns the sequences that decode at once. Their prompts share one chunk, which is no longer than the longest prompt.
uint32_t StartupProfiler::max_decodes(uint32_t longest) const {
  const uint64_t pages_each = (uint64_t{bounds_.page_size} + kDecodePromptTokens + 2 - 1) / bounds_.page_size;
  if (kDecodePromptTokens + 2 >= bounds_.context_length) return 0;
  uint32_t count = std::min({bounds_.max_running, kMaxDecodes, longest / kDecodePromptTokens,
                             static_cast<uint32_t>(bounds_.page_count / pages_each)});
  for (const cache::WindowPool& pool : bounds_.windows) {
    if (pool.kind == GroupKind::kState) count = std::min(count, pool.pages.device / cache::kRunningStatePages);
  }
  return count;
}

void StartupProfiler::add_decodes() {
  const uint32_t max_count = max_decodes(longest_);
  for (const uint32_t count : {max_count, max_count / 2}) {
    if (count == 0) continue;
    steps_.push_back({.sequences = count, .tokens = kDecodePromptTokens, .fresh = true});
    for (int step = 0; step < 2; ++step) steps_.push_back({.sequences = count, .tokens = 1});
  }
}

// Returns the slowest stage's time for a prompt of that length alone.
double StartupProfiler::slowest_us(uint32_t prompt_tokens) const {
  double slowest = 0;
  for (const Step& step : steps_) {
    if (!step.is_recorded || !step.fresh || step.sequences != 1 || step.tokens != prompt_tokens) continue;
    for (const ProfileTiming& timing : step.best) slowest = std::max(slowest, timing.run_us);
  }
  return slowest;
}

// Bursts have prompts of half the longest one, or shorter ones if those take long, and decode steps if they have room.
void StartupProfiler::begin_contention() {
  const uint32_t half = std::max(1u, longest_ / 2);
  const double part = std::min(1.0, kBurstRunUs / std::max(slowest_us(half), 1.0));
  const auto tokens = static_cast<uint32_t>(part * half);
  ContentionProfiler::Shapes shapes{.prompt_tokens = std::clamp(tokens, std::min(half, kMinBurstPrompt), half)};
  const uint32_t length = ContentionProfiler::longest_decode(kDecodePromptTokens, bounds_.stage_count);
  const auto pages = [&](uint32_t tokens_of_one) {
    return (uint64_t{bounds_.page_size} + tokens_of_one - 1) / bounds_.page_size;
  };
  const uint32_t count = max_decodes(longest_) / 2;
  const uint64_t wanted = count * pages(length) + pages(shapes.prompt_tokens);
  if (length < bounds_.context_length && count < bounds_.max_running && wanted <= bounds_.page_count) {
    shapes.decode_count = count;
    shapes.decode_prompt = kDecodePromptTokens;
  }
  contention_profiler_.emplace(shapes, bounds_.stage_count, bounds_.window, *bounds_.machine);
}

std::optional<Plan> StartupProfiler::next(uint64_t id) {
  if (closed_) return std::nullopt;
  if (next_step_ == order_.size() && !contention_profiler_) extend();
  if (next_step_ < order_.size()) {
    ids_.push_back(id);
    return next_isolated();
  }
  if (!contention_profiler_ && bounds_.stage_count > 1 && bounds_.machine) begin_contention();
  if (contention_profiler_ && !contention_profiler_->finished()) return contention_profiler_->next(id, dummies_);
  closed_ = true;
  Plan plan;
  dummies_.close_all(plan);
  return plan;
}

Plan StartupProfiler::next_isolated() {
  Plan plan;
  const Step& step = steps_[order_[next_step_++]];
  if (step.fresh) {
    dummies_.close_all(plan);
    for (uint32_t slot = 0; slot < step.sequences; ++slot)
      dummies_.open_with_prefix(plan, step.cached_prefix, step.tokens);
  }
  for (uint32_t slot = 0; slot < step.sequences; ++slot) dummies_.append(plan, slot, step.tokens);
  return plan;
}

void StartupProfiler::record(const StageReport& report, const BatchShape& shape) {
  const double run_us = static_cast<double>(report.run_ns()) * 1e-3;
  const auto found = std::ranges::lower_bound(ids_, report.plan.value());
  if (found == ids_.end() || *found != report.plan.value()) {
    if (contention_profiler_) contention_profiler_->record(report, shape);
    return;
  }
  Step& step = steps_[order_[static_cast<size_t>(found - ids_.begin())]];
  run_us_ += run_us;
  const size_t stage = report.stage.value();
  if (const size_t index = order_[static_cast<size_t>(found - ids_.begin())]; index > 0 && index < probes_) {
    if (probe_timings_.size() <= stage) probe_timings_.resize(stage + 1);
    auto& [shortest, longest] = probe_timings_[stage];
    if (shortest.tokens == 0 || step.tokens <= shortest.tokens) shortest = {step.tokens, run_us};
    if (step.tokens >= longest.tokens) longest = {step.tokens, run_us};
  }
  if (rounds_ > 0 && !step.first_round_only) round_us_ += run_us;
  std::vector<ProfileTiming>& best = step.best;
  if (best.size() <= stage) best.resize(stage + 1);
  ProfileTiming& timing = best[stage];
  if (timing.run_us == 0 || run_us < timing.run_us) timing = {report.stage, shape, run_us};
}

// A decode step after one of the same sequences repeats it: the shorter time counts for both.
std::vector<ProfileTiming> StartupProfiler::timings() const {
  std::vector<ProfileTiming> all;
  for (const size_t index : order_) {
    const Step& step = steps_[index];
    if (!step.is_recorded) continue;
    const Step* other = nullptr;
    if (index > 0 && steps_[index - 1].repeats(step)) other = &steps_[index - 1];
    if (index + 1 < steps_.size() && step.repeats(steps_[index + 1])) other = &steps_[index + 1];
    for (size_t stage = 0; stage < step.best.size(); ++stage) {
      ProfileTiming timing = step.best[stage];
      if (other != nullptr && stage < other->best.size() && other->best[stage].run_us > 0)
        timing.run_us = std::min(timing.run_us, other->best[stage].run_us);
      if (timing.run_us > 0) all.push_back(timing);
    }
  }
  clamp_outliers(all);
  return all;
}

Contention StartupProfiler::contention(const CostModel& costs) const {
  return contention_profiler_ ? contention_profiler_->contention(costs) : Contention{};
}

}  // namespace millrace::sched
