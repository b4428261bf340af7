#include "sched/profile.h"

#include <algorithm>

namespace millrace::sched {
namespace {

constexpr uint32_t kPromptOfDecodes = 16;
constexpr uint32_t kMostDecodes = 32;
constexpr uint32_t kTokenKinds = 32;

}  // namespace

Profile::Profile(const ProfileBounds& bounds) : bounds_(bounds) {
  add_prefills();
  add_decodes();
  for (size_t round = 0; round < kRounds; ++round) {
    if (round >= kFewestRounds) rounds_.push_back(order_.size());
    for (size_t step = 0; step < steps_.size(); ++step) {
      if (round == 0 || (steps_[step].counts && !steps_[step].once)) order_.push_back(step);
    }
  }
}

// Chunks after a prefix are as long as half the largest, as far as one sequence goes; they go on from the prompt before
// them, which is the largest in every round.
void Profile::add_prefills() {
  const uint32_t longest = std::max(1u, std::min(bounds_.chunk_size, bounds_.context_length - 1));
  const uint32_t longest_sample = std::min(bounds_.longest_sample, bounds_.context_length - 1);
  steps_.push_back({.tokens = longest, .fresh = true, .counts = false});
  for (uint32_t sample = 1; sample <= bounds_.prompt_samples; ++sample) {
    const uint64_t length = uint64_t{longest_sample} * sample / bounds_.prompt_samples;
    steps_.push_back({.tokens = std::max(1u, static_cast<uint32_t>(length)), .fresh = true, .once = true});
  }
  for (const uint32_t part : {4u, 2u, 1u}) steps_.push_back({.tokens = std::max(1u, longest / part), .fresh = true});
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
  for (const uint32_t count : {most, most / 2}) {
    if (count == 0 || prompt + 2 >= bounds_.context_length) continue;
    steps_.push_back({.sequences = count, .tokens = prompt, .fresh = true});
    for (int step = 0; step < 2; ++step) steps_.push_back({.sequences = count, .tokens = 1});
  }
}

std::optional<Plan> Profile::next(uint64_t id) {
  if (next_step_ > order_.size()) return std::nullopt;
  if (run_us_ > kLongEnoughUs && std::ranges::binary_search(rounds_, next_step_)) order_.resize(next_step_);
  Plan plan;
  if (next_step_ == order_.size()) {
    ++next_step_;
    close_all(plan);
    return plan;
  }
  ids_.push_back(id);
  const Step& step = steps_[order_[next_step_++]];
  if (step.fresh) {
    close_all(plan);
    for (uint32_t slot = 0; slot < step.sequences; ++slot) {
      plan.opens.push_back({.slot = SlotId(slot), .prompt_length = step.tokens});
      open_.emplace_back();
    }
  }
  for (uint32_t slot = 0; slot < step.sequences; ++slot) append(plan, slot, step.tokens);
  return plan;
}

void Profile::record(uint64_t plan, StageId stage, const BatchShape& shape, double run_us) {
  const auto found = std::ranges::lower_bound(ids_, plan);
  if (found == ids_.end() || *found != plan) return;
  run_us_ += run_us;
  std::vector<Timing>& best = steps_[order_[static_cast<size_t>(found - ids_.begin())]].best;
  if (best.size() <= stage.value()) best.resize(stage.value() + 1);
  Timing& timing = best[stage.value()];
  if (timing.run_us == 0 || run_us < timing.run_us) timing = {stage, shape, run_us};
}

std::vector<Profile::Timing> Profile::timings() const {
  std::vector<Timing> all;
  for (const size_t index : order_) {
    const Step& step = steps_[index];
    if (!step.counts) continue;
    for (const Timing& timing : step.best) {
      if (timing.run_us > 0) all.push_back(timing);
    }
  }
  return all;
}

void Profile::close_all(Plan& plan) {
  for (uint32_t slot = 0; slot < open_.size(); ++slot) plan.closes.emplace_back(slot);
  open_.clear();
  used_pages_ = 0;
}

void Profile::append(Plan& plan, uint32_t slot, uint32_t tokens) {
  Scratch& sequence = open_[slot];
  PlanSlice slice;
  slice.slot = SlotId(slot);
  slice.prefix = sequence.length;
  slice.token_count = tokens;
  slice.sample = true;
  sequence.length += tokens;
  for (; sequence.page_count * bounds_.page_size < sequence.length; ++sequence.page_count) {
    const PageId page(used_pages_++);
    plan.new_pages.push_back(page);
    sequence.table_digest = sched::table_digest(sequence.table_digest, page);
    ++slice.new_page_count;
  }
  const uint32_t token_kinds = std::clamp(bounds_.vocab_size, 1u, kTokenKinds);
  for (uint32_t i = 0; i < tokens; ++i) plan.tokens.push_back(static_cast<TokenId>(i % token_kinds));
  plan.digest = plan_digest(plan.digest, slice, sequence.table_digest);
  plan.slices.push_back(slice);
}

}  // namespace millrace::sched
