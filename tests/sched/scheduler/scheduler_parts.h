#pragma once

#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "sched/scheduler/decode_planner.h"
#include "sched/scheduler/output_processor.h"
#include "sched/scheduler/prefill_planner.h"

namespace millrace::sched {

/// Options of a scheduler with 32 pages of 4 tokens and 8 slots, whose plans take 16 prompt tokens.
inline SchedulerOptions small_options() {
  return {.page_size = 4,
          .page_count = 32,
          .max_running = 8,
          .window = 2,
          .chunked_prefill_size = 16,
          .context_length = 64};
}

/// Options of a scheduler with as many pages and 4 slots, one plan in flight, and drafts of up to `draft_tokens`.
inline SchedulerOptions draft_options(uint32_t draft_tokens) {
  return {.page_size = 4,
          .page_count = 32,
          .max_running = 4,
          .window = 1,
          .chunked_prefill_size = 16,
          .context_length = 64,
          .draft_tokens = draft_tokens};
}

/// The parts of a scheduler over one state, as Scheduler has them, for tests that drive one part directly.
struct SchedulerParts {
  explicit SchedulerParts(const SchedulerOptions& options)
      : state(options),
        chunker({.mode = options.chunking, .size = options.chunked_prefill_size, .page_size = options.page_size}),
        costs(options, chunker),
        queue(state),
        builder(state),
        admission(state, queue, builder),
        preemptor(state, queue, admission),
        decodes(state, builder, preemptor, admission, costs),
        prefills(state, queue, admission, builder, chunker),
        outputs(state) {}

  /// Queues a request whose prompt shares no page with those of other ids.
  Sequence& add(uint64_t id, size_t prompt_length, uint32_t max_tokens = 10, int32_t priority = 0) {
    GenerateRequest request;
    request.prompt.assign(prompt_length, static_cast<TokenId>(id));
    request.max_tokens = max_tokens;
    request.priority = priority;
    queue.add(SequenceId(id), std::move(request));
    return *state.find(SequenceId(id));
  }

  void begin_turn() {
    ++state.turn;
    builder.begin();
  }

  /// Admits a waiting sequence and puts its whole prompt into a plan.
  Plan run(Sequence& sequence) {
    begin_turn();
    REQUIRE(admission.admit(sequence, static_cast<uint32_t>(sequence.tokens.size())));
    builder.add_slice(sequence, sequence.unscheduled());
    return builder.take();
  }

  /// Books an output of the oldest plan in flight that has `token` for every sample.
  std::vector<SequenceUpdate> answer(TokenId token = 9) {
    const InFlightPlan plan = std::move(state.in_flight.front());
    state.in_flight.pop_front();
    PlanOutput output;
    for (const PlanSlice& slice : plan.slices) {
      output.slices.emplace_back().samples.resize(slice.sample_count(), {.token = token});
    }
    return outputs.book(plan, output);
  }

  /// Admits a sequence and books its first sampled token: it decodes from then on.
  Sequence& start(uint64_t id, size_t prompt_length, uint32_t max_tokens = 10, int32_t priority = 0) {
    Sequence& sequence = add(id, prompt_length, max_tokens, priority);
    (void)run(sequence);
    (void)answer();
    REQUIRE(sequence.decoding());
    return sequence;
  }

  /// Gives all free pages to a running sequence.
  void exhaust_pages(Sequence& sequence) {
    while (state.cache.extend(sequence.page_table)) {
    }
  }

  SchedulerState state;
  Chunker chunker;
  CostTracker costs;
  WaitingQueue queue;
  PlanBuilder builder;
  AdmissionController admission;
  Preemptor preemptor;
  DecodePlanner decodes;
  PrefillPlanner prefills;
  OutputProcessor outputs;
};

}  // namespace millrace::sched
