#include "sched/scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace::sched {
namespace {

ChunkingOptions chunking_options(const SchedulerOptions& options) {
  return {.mode = options.chunking,
          .size = options.chunked_prefill_size,
          .smoothing = options.chunk_smoothing,
          .page_size = options.page_size,
          .stage_count = options.stage_count,
          .parallel_stages = parallel_stages(options),
          .cuts_prompts = options.cuts_prompts};
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options)
    : state_(options),
      chunker_(chunking_options(options)),
      costs_(options, chunker_),
      queue_(state_),
      builder_(state_),
      admission_(state_, queue_, builder_),
      preemptor_(state_, queue_, admission_),
      decodes_(state_, builder_, preemptor_, admission_, costs_),
      prefills_(state_, queue_, admission_, builder_, chunker_),
      outputs_(state_) {}

std::optional<SequenceId> Scheduler::offer(SequenceId id, GenerateRequest request, uint32_t max_queued) {
  auto newcomer = make_sequence(id, std::move(request));
  Sequence* const without_place = overflow(*newcomer, max_queued);
  if (without_place == newcomer.get()) return id;
  std::optional<SequenceId> ended;
  if (without_place != nullptr) {
    ended = without_place->id;
    state_.remove(*without_place);
  }
  queue_.add(std::move(newcomer));
  return ended;
}

// Requests that have begun keep their places: their clients may have tokens already. If all that wait have begun, a
// newcomer that starts at once is one more that runs, and none has to go.
Sequence* Scheduler::overflow(Sequence& newcomer, uint32_t max_queued) const {
  if (state_.waiting.size() < max_queued) return nullptr;
  const std::vector<Sequence*> order = queue_.order_with(newcomer);
  const size_t starting = paused_ ? 0 : admission_.count_with_room(order);
  if (order.size() - starting <= max_queued) return nullptr;
  const auto last = std::find_if(order.rbegin(), order.rend(), [](const Sequence* one) { return !one->cached_tokens; });
  if (order.rend() - last <= static_cast<ptrdiff_t>(starting)) return nullptr;
  return outranks(state_.options.policy, newcomer, **last) ? *last : &newcomer;
}

std::optional<Plan> Scheduler::next() {
  if (costs_.profiling()) return next_profile_plan();
  if (paused_ || state_.cache.verifying()) return std::nullopt;
  ++state_.turn;
  builder_.begin();
  if (state_.options.policy == QueuePolicy::kLpm) queue_.refresh_matches();
  preemptor_.make_room_for_next();
  decodes_.plan();
  prefills_.plan();
  if (builder_.slices().empty()) return std::nullopt;
  admission_.on_plan();
  return take_plan();
}

Plan Scheduler::empty_plan() {
  builder_.begin();
  return take_plan();
}

Plan Scheduler::take_plan() {
  Plan plan = builder_.take();
  costs_.record_plan(plan);
  return plan;
}

std::optional<Plan> Scheduler::next_profile_plan() {
  auto plan = costs_.next_profile_plan(state_.plan_count, state_.in_flight.size());
  if (!plan) return std::nullopt;
  state_.add_in_flight({.sequences = {}, .slices = plan->slices});
  costs_.record_plan(*plan);
  return plan;
}

std::vector<SequenceUpdate> Scheduler::complete(const PlanOutput& output) {
  CHECK(!state_.in_flight.empty(), "an output of plan {}, where none is in flight", output.id.value());
  const InFlightPlan plan = std::move(state_.in_flight.front());
  state_.in_flight.pop_front();
  costs_.observe(output.reports);
  costs_.end_profile_if_finished(state_.in_flight.size());
  return outputs_.book(plan, output);
}

Result<void> Scheduler::acknowledge(const std::vector<cache::CopyAck>& acks) {
  const bool was_verifying = state_.cache.verifying();
  for (const cache::CopyAck& ack : acks) RETURN_IF_ERROR(state_.cache.acknowledge(ack));
  if (was_verifying && !state_.cache.verifying()) queue_.prefetch_all();
  return {};
}

bool Scheduler::abort(SequenceId id) {
  Sequence* const sequence = state_.find(id);
  if (sequence == nullptr) return false;
  state_.remove(*sequence);
  return true;
}

std::vector<SequenceId> Scheduler::pause(PauseMode mode) {
  paused_ = true;
  std::vector<SequenceId> ended;
  if (mode == PauseMode::kRetract) {
    while (!state_.running.empty()) queue_.put_back(*state_.running.back());
  } else if (mode == PauseMode::kAbort) {
    for (const auto& [id, sequence] : state_.sequences) ended.push_back(id);
    std::ranges::sort(ended);
    for (const SequenceId id : ended) abort(id);
  }
  return ended;
}

std::vector<SequenceId> Scheduler::on_ring_lost() {
  std::vector<SequenceId> ended = state_.forget_ring();
  queue_.prefetch_all();
  builder_.on_ring_lost();
  costs_.on_ring_lost();
  return ended;
}

std::vector<SequenceId> Scheduler::resize(cache::PoolSizes pages) {
  std::vector<SequenceId> ended = state_.resize(pages);
  costs_.resize(state_.options);
  queue_.prefetch_all();
  return ended;
}

}  // namespace millrace::sched
