#include "sched/scheduler/scheduler.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace millrace::sched {
namespace {

/// Prompts that the published algorithm times on its first stage.
constexpr uint32_t kPublishedSamples = 128;
constexpr int64_t kMaxTokenIds = int64_t{std::numeric_limits<TokenId>::max()} + 1;
/// Reports of older plans are of no use.
constexpr size_t kMaxShapes = 1024;

/// The machine that several stages compute on, if they do.
std::optional<SharedMachine> machine_of(const SchedulerOptions& options, const Contention& contention) {
  if (options.processors == 0 || options.stage_count < 2) return std::nullopt;
  return SharedMachine{options.processors, options.stage_threads, contention};
}

double parallel_stages(const SchedulerOptions& options) {
  const auto machine = machine_of(options, {});
  return machine ? machine->full_speed_runs() : std::numeric_limits<double>::infinity();
}

StartupProfilerOptions profiler_options(const SchedulerOptions& options) {
  return {options.page_size,
          options.page_count,
          options.max_running,
          options.chunked_prefill_size,
          options.context_length,
          options.chunking == Chunking::kPublished ? kPublishedSamples : 0,
          max_prompt_tokens(options.chunking, options.chunked_prefill_size),
          options.vocab_size,
          options.stage_count,
          options.window,
          machine_of(options, {})};
}

cache::PrefixCacheOptions cache_options(const SchedulerOptions& options) {
  return {options.page_size, options.page_count,   options.share_prefixes, options.host_page_count,
          options.has_store, options.write_policy, options.first_copy_id};
}

}  // namespace

uint32_t max_plan_tokens(const SchedulerOptions& options) {
  return max_prompt_tokens(options.chunking, options.chunked_prefill_size) + options.max_running +
         max_draft_rows(options.draft_tokens, options.max_running);
}

bool samples_end_token(const grammar::Grammar& grammar, const tensor::SamplingParams& sampling) {
  return std::ranges::find_first_of(grammar.stop_token_ids(), sampling.stop_token_ids) !=
         grammar.stop_token_ids().end();
}

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      max_draft_rows_(max_draft_rows(options.draft_tokens, options.max_running)),
      cache_(cache_options(options)),
      chunker_({options.chunking, options.chunked_prefill_size, options.chunk_smoothing, options.page_size,
                options.stage_count, parallel_stages(options)}),
      new_token_ratio_(options.new_token_ratio),
      masks_(options.max_running) {
  CHECK(options.page_size > 0 && options.max_running > 0 && options.window > 0 && options.chunked_prefill_size > 0);
  CHECK(options.context_length <= uint64_t{options.page_count} * options.page_size,
        "a context of {} tokens, the pages hold {}", options.context_length,
        uint64_t{options.page_count} * options.page_size);
  for (uint32_t slot = options.max_running; slot-- > 0;) free_slots_.emplace_back(slot);
  if (options.chunking != Chunking::kFixed) profile_.emplace(profiler_options(options));
  set_contention({});
}

size_t Scheduler::pages_for(size_t tokens) const {
  return (tokens + options_.page_size - 1) / options_.page_size;
}

Result<void> Scheduler::admissible(const GenerateRequest& request) const {
  const size_t most = options_.context_length - (request.max_tokens > 0 ? 1 : 0);
  if (request.prompt.empty()) return Error{ErrorCode::kInvalidArgument, "the prompt is empty"};
  if (request.prompt.size() > most) {
    return make_error(ErrorCode::kInvalidArgument, "the prompt has {} tokens, a context of {} leaves room for {}",
                      request.prompt.size(), options_.context_length, most);
  }
  const auto known = options_.vocab_size > 0 ? static_cast<int64_t>(options_.vocab_size) : kMaxTokenIds;
  const auto unknown =
      std::ranges::find_if(request.prompt, [known](TokenId token) { return token < 0 || token >= known; });
  if (unknown != request.prompt.end()) {
    return make_error(ErrorCode::kInvalidArgument, "the prompt has token {}, the model knows those from 0 to {}",
                      *unknown, known - 1);
  }
  return {};
}

void Scheduler::add(SequenceId id, GenerateRequest request) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  sequence->prompt_length = static_cast<uint32_t>(request.prompt.size());
  sequence->tokens = std::move(request.prompt);
  sequence->request = std::move(request);
  if (const auto& grammar = sequence->request.grammar; grammar != nullptr) {
    sequence->matcher.emplace(grammar, samples_end_token(*grammar, sequence->request.sampling));
  }
  waiting_.push_back(sequence.get());
  prefetch(*sequence);
  const bool inserted = sequences_.emplace(id, std::move(sequence)).second;
  CHECK(inserted, "sequence {} added twice", id.value());
}

void Scheduler::prefetch(Sequence& sequence) {
  if (sequence.wants_prompt_logprobs() || cache_.verifying()) return;
  cache_.prefetch(sequence.id, sequence.request.cache_salt, sequence.reusable_tokens(), sequence.page_table);
  sequence.awaits_prefetch = options_.prefetch_policy != PrefetchPolicy::kBestEffort;
}

void Scheduler::stop_prefetch_wait(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found != sequences_.end()) found->second->awaits_prefetch = false;
}

// Pages and slot are free at once, though plans in flight still use them: every stage runs plans in order, so whoever
// gets them next comes after.
void Scheduler::release_slot(Sequence& sequence) {
  if (!sequence.running) return;
  cache_.publish(sequence.page_table, std::span(sequence.tokens).first(sequence.scheduled));
  cache_.release(sequence.page_table);
  sequence.sent_pages = 0;
  sequence.table_digest = 0;
  sequence.scheduled = 0;
  sequence.last_target_us = 0;
  sequence.running = false;
  pending_closes_.push_back(sequence.slot);
  free_slots_.push_back(sequence.slot);
  std::erase(running_, &sequence);
}

void Scheduler::remove(Sequence& sequence) {
  release_slot(sequence);
  cache_.stop_prefetch(sequence.id);
  std::erase(waiting_, &sequence);
  sequences_.erase(sequence.id);
}

bool Scheduler::abort(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return false;
  remove(*found->second);
  return true;
}

std::vector<SequenceId> Scheduler::on_ring_lost() {
  std::vector<SequenceId> ended;
  for (const Sequence* sequence : running_) ended.push_back(sequence->id);
  std::sort(ended.begin(), ended.end());
  for (const SequenceId id : ended) abort(id);
  cache_.on_ring_lost();
  for (Sequence* sequence : waiting_) {
    sequence->in_flight = 0;
    sequence->drafts.clear();
    prefetch(*sequence);
  }
  in_flight_.clear();
  pending_closes_.clear();
  masks_.clear();
  shapes_.clear();
  plan_count_ = 0;
  if (profile_) profile_.emplace(profiler_options(options_));
  set_contention(contention());
  CHECK(free_slots_.size() == options_.max_running, "{} of {} slots are free without a ring", free_slots_.size(),
        options_.max_running);
  CHECK(cache_.available_pages() == cache_.page_count(), "{} of {} pages are free without a ring",
        cache_.available_pages(), cache_.page_count());
  return ended;
}

std::vector<SequenceId> Scheduler::pause(PauseMode mode) {
  paused_ = true;
  std::vector<SequenceId> ended;
  if (mode == PauseMode::kRetract) {
    while (!running_.empty()) requeue(*running_.back());
  } else if (mode == PauseMode::kAbort) {
    for (const auto& [id, sequence] : sequences_) ended.push_back(id);
    std::sort(ended.begin(), ended.end());
    for (const SequenceId id : ended) abort(id);
  }
  return ended;
}

Result<void> Scheduler::acknowledge(const std::vector<cache::CopyAck>& acks) {
  const bool was_verifying = cache_.verifying();
  for (const cache::CopyAck& ack : acks) RETURN_IF_ERROR(cache_.acknowledge(ack));
  if (was_verifying && !cache_.verifying()) {
    for (Sequence* sequence : waiting_) prefetch(*sequence);
  }
  return {};
}

void Scheduler::check_invariants() const {
  std::vector<const cache::PageTable*> holders;
  for (const Sequence* sequence : running_) holders.push_back(&sequence->page_table);
  for (const Sequence* sequence : waiting_) CHECK(sequence->page_table.pages.empty() && !sequence->running);
  cache_.check_invariants(holders);
  const auto awaited = std::ranges::count_if(waiting_, [this](const auto* one) { return cache_.prefetching(one->id); });
  CHECK(cache_.wanted_prefetches() <= static_cast<size_t>(awaited), "{} prefetches, of which {} wait",
        cache_.wanted_prefetches(), awaited);
  std::vector<bool> taken(options_.max_running);
  const auto take = [&taken](SlotId slot) {
    CHECK(!taken[slot.value()], "slot {} is in use twice", slot.value());
    taken[slot.value()] = true;
  };
  for (const SlotId slot : free_slots_) take(slot);
  for (const Sequence* sequence : running_) {
    CHECK(sequence->running && sequence->scheduled <= sequence->tokens.size());
    take(sequence->slot);
  }
  CHECK(running_.size() + free_slots_.size() == options_.max_running, "{} slots in use, {} free, of {}",
        running_.size(), free_slots_.size(), options_.max_running);
  CHECK(running_.size() + waiting_.size() == sequences_.size());
  check_in_flight();
}

// The slices of a sequence follow each other, up to what is scheduled of it while it runs, and only the last one draws:
// a decode step waits for the token before it.
void Scheduler::check_in_flight() const {
  CHECK(in_flight_.size() <= options_.window, "{} plans in flight in a window of {}", in_flight_.size(),
        options_.window);
  struct Found {
    uint32_t count = 0;
    uint32_t end = 0;
    bool draws = false;
  };
  std::unordered_map<SequenceId, Found> found;
  for (const InFlight& plan : in_flight_) {
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      const PlanSlice& slice = plan.slices[i];
      Found& last = found[plan.sequences[i]];
      CHECK(last.count == 0 || (slice.prefix == last.end && !last.draws),
            "sequence {}: a slice at {} after one that ends at {}", plan.sequences[i].value(), slice.prefix, last.end);
      last = {last.count + 1, slice.prefix + slice.token_count - slice.draft_count, slice.sample};
    }
  }
  for (const auto& [id, sequence] : sequences_) {
    const Found last = found[id];
    CHECK(sequence->in_flight == last.count, "sequence {} is in {} plans in flight, noted {}", id.value(), last.count,
          sequence->in_flight);
    CHECK(!sequence->running || last.count == 0 || last.end == sequence->scheduled);
  }
}

// The first of its plans ran one at a time, so that their times are those of stages alone.
void Scheduler::finish_profile() {
  for (const auto& [stage, shape, run_us] : profile_->timings()) {
    chunker_.calibrate(stage, shape, run_us);
    isolated_costs_.calibrate(stage, shape, run_us);
  }
  const Contention found = profile_->contention(isolated_costs_);
  profile_.reset();
  chunker_.finish_profile();
  isolated_costs_.set_prior();
  set_contention(found);
}

void Scheduler::set_contention(const Contention& contention) {
  machine_ = machine_of(options_, contention);
  contention_estimator_.reset();
  if (machine_) contention_estimator_.emplace(options_.stage_count, options_.window, *machine_);
}

// A run that waits for its pages to come from the host says nothing of what computing costs.
void Scheduler::record_shape(const Plan& plan) {
  BatchShape& shape = shapes_.emplace_back().emplace();
  for (const PlanSlice& slice : plan.slices) shape.add(slice);
  if (std::ranges::any_of(plan.copies, [](const auto& copy) { return copy.kind == cache::CopyKind::kLoad; })) {
    shapes_.back().reset();
  }
  if (shapes_.size() > kMaxShapes) shapes_.pop_front();
  in_flight_.back().slices = plan.slices;
  ++plan_count_;
}

}  // namespace millrace::sched
