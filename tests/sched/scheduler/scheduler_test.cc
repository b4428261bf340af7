#include "sched/scheduler/scheduler.h"

#include <catch2/catch.hpp>
#include <deque>

using namespace millrace;
using namespace millrace::sched;

namespace {

SchedulerOptions small_options() {
  return {.page_size = 4,
          .page_count = 32,
          .max_running = 8,
          .window = 1,
          .chunked_prefill_size = 16,
          .context_length = 64};
}

/// Returns a request whose prompt shares no page with earlier ones.
GenerateRequest request(size_t prompt, uint32_t max_tokens) {
  static TokenId next = 1000;
  GenerateRequest made;
  made.prompt.assign(prompt, next++);
  made.max_tokens = max_tokens;
  return made;
}

/// Returns a plan's output: every sample is `token`, and every row whose next token is known has a score.
PlanOutput output_of(const Plan& plan, TokenId token) {
  PlanOutput output;
  for (const PlanSlice& slice : plan.slices) {
    SliceOutput& made = output.slices.emplace_back();
    made.samples.resize(slice.sample_count(), {.token = token});
    if (slice.prompt_top_logprobs >= 0) made.scores.resize(slice.token_count - (slice.next_token < 0 ? 1 : 0));
  }
  return output;
}

std::vector<SequenceUpdate> answer(Scheduler& scheduler, const Plan& plan, TokenId token) {
  return scheduler.complete(output_of(plan, token));
}

}  // namespace

TEST_CASE("chunks ride in consecutive plans and only the last samples") {
  auto options = small_options();
  options.window = 4;
  Scheduler scheduler(options);
  scheduler.add(SequenceId(1), request(40, 5));
  const auto first = scheduler.next();
  const auto second = scheduler.next();
  const auto third = scheduler.next();
  REQUIRE(first->slices[0].token_count == 16);
  REQUIRE(second->slices[0].prefix == 16);
  REQUIRE(third->slices[0].token_count == 8);
  REQUIRE_FALSE(first->slices[0].sample);
  REQUIRE_FALSE(second->slices[0].sample);
  REQUIRE(third->slices[0].sample);
  REQUIRE(first->new_pages.size() == 10);
  REQUIRE(second->new_pages.empty());
  REQUIRE_FALSE(scheduler.next().has_value());
  REQUIRE(answer(scheduler, *first, 9).empty());
  REQUIRE(answer(scheduler, *second, 9).empty());
  const auto updates = answer(scheduler, *third, 9);
  REQUIRE(updates.size() == 1);
  REQUIRE(updates[0].event.tokens == std::vector<TokenId>{9});
}

TEST_CASE("logits without a distribution end the sequence") {
  auto options = small_options();
  options.window = 2;
  Scheduler scheduler(options);
  scheduler.add(SequenceId(1), request(20, 5));
  scheduler.add(SequenceId(2), request(4, 5));
  const auto first = scheduler.next();
  const auto second = scheduler.next();
  REQUIRE(second->slices.size() == 2);
  PlanOutput broken;
  broken.slices.resize(first->slices.size());
  broken.slices[0].fault = tensor::LogitFault::kNan;
  auto updates = scheduler.complete(broken);
  REQUIRE(updates.size() == 1);
  REQUIRE(updates[0].id == SequenceId(1));
  REQUIRE(updates[0].event.error->code == ErrorCode::kInternal);
  REQUIRE_THAT(updates[0].event.error->message, Catch::Contains("20 tokens") && Catch::Contains("a NaN"));
  REQUIRE(scheduler.running_count() == 1);
  updates = answer(scheduler, *second, 9);
  REQUIRE(updates.size() == 1);
  REQUIRE(updates[0].id == SequenceId(2));
  REQUIRE(updates[0].event.tokens == std::vector<TokenId>{9});
  REQUIRE(scheduler.abort(SequenceId(2)));
  REQUIRE(scheduler.free_pages() == options.page_count);
}

TEST_CASE("a prompt retracted in flight is scored once") {
  auto options = small_options();
  options.window = 2;
  options.policy = QueuePolicy::kPriority;
  options.max_running = 1;
  Scheduler scheduler(options);
  GenerateRequest scored = request(20, 5);
  scored.prompt_top_logprobs = 0;
  scheduler.add(SequenceId(1), std::move(scored));
  const auto first = scheduler.next();
  const auto last = scheduler.next();
  REQUIRE(last->slices[0].sample);
  const bool paused = GENERATE(true, false);
  GenerateRequest preferred = request(4, 1);
  preferred.priority = 1;
  std::deque<Plan> in_flight{*first, *last};
  if (paused) {
    REQUIRE(scheduler.pause(PauseMode::kRetract).empty());
    scheduler.resume();
  } else {
    scheduler.add(SequenceId(2), std::move(preferred));
  }
  std::vector<TokenId> tokens;
  size_t scores = 0;
  for (int turn = 0; turn < 50 && !scheduler.empty(); ++turn) {
    while (in_flight.size() < options.window) {
      auto plan = scheduler.next();
      if (!plan) break;
      in_flight.push_back(std::move(*plan));
    }
    REQUIRE_FALSE(in_flight.empty());
    for (const SequenceUpdate& update : answer(scheduler, in_flight.front(), 9)) {
      if (update.id != SequenceId(1)) continue;
      tokens.insert(tokens.end(), update.event.tokens.begin(), update.event.tokens.end());
      if (tokens.size() > 1) REQUIRE(update.event.prompt_logprobs.empty());
      scores += update.event.prompt_logprobs.size();
    }
    in_flight.pop_front();
  }
  REQUIRE(scheduler.empty());
  REQUIRE(tokens == std::vector<TokenId>(5, 9));
  REQUIRE(scores == 20);
  REQUIRE(scheduler.retraction_count() == (paused ? 0 : 1));  // a pause is no want of room
}

TEST_CASE("an output must fit the oldest plan in flight") {
  auto options = small_options();
  options.window = 2;
  Scheduler scheduler(options);
  REQUIRE(scheduler.check({}).error().code == ErrorCode::kData);
  GenerateRequest scored = request(20, 5);
  scored.prompt_top_logprobs = 0;
  scheduler.add(SequenceId(1), std::move(scored));
  const auto first = scheduler.next();
  const auto last = scheduler.next();
  const PlanOutput good = output_of(*first, 9);
  REQUIRE_FALSE(scheduler.check(good).has_error());
  const auto message = [&](auto change) {
    PlanOutput bad = good;
    change(bad);
    return scheduler.check(bad).error().message;
  };
  REQUIRE(message([](PlanOutput& output) { output.id = PlanId(1); }) == "an output of plan 1, wanted that of plan 0");
  REQUIRE(message([](PlanOutput& output) { output.slices.clear(); }) == "plan 0: 0 slices in its output, 1 planned");
  REQUIRE(message([](PlanOutput& output) { output.slices[0].samples.emplace_back(); }) ==
          "plan 0, slice 0: 1 tokens and 16 scores, wanted 0 and 16");
  REQUIRE(message([](PlanOutput& output) { output.slices[0].scores.pop_back(); }) ==
          "plan 0, slice 0: 0 tokens and 15 scores, wanted 0 and 16");
  (void)scheduler.complete(good);
  PlanOutput second = output_of(*last, 9);
  second.id = PlanId(1);
  REQUIRE_FALSE(scheduler.check(second).has_error());
  second.slices[0].fault = tensor::LogitFault::kNan;
  second.slices[0].samples.clear();
  REQUIRE_FALSE(scheduler.check(second).has_error());
}

TEST_CASE("prefill and decode mix in one plan") {
  Scheduler scheduler(small_options());
  scheduler.add(SequenceId(1), request(4, 10));
  const auto first = scheduler.next();
  (void)answer(scheduler, *first, 9);
  scheduler.add(SequenceId(2), request(6, 10));
  const auto mixed = scheduler.next();
  REQUIRE(mixed->slices.size() == 2);
  REQUIRE(mixed->slices[0].token_count == 1);
  REQUIRE(mixed->slices[0].prefix == 4);
  REQUIRE(mixed->slices[0].new_page_count == 1);
  REQUIRE(mixed->slices[1].token_count == 6);
  REQUIRE_FALSE(scheduler.next().has_value());
}

TEST_CASE("decode is spread over the window with the longest wait first") {
  auto options = small_options();
  options.window = 3;
  Scheduler scheduler(options);
  for (uint64_t id = 1; id <= 5; ++id) scheduler.add(SequenceId(id), request(2, 10));
  const auto prefill = scheduler.next();
  REQUIRE(prefill->slices.size() == 5);
  (void)answer(scheduler, *prefill, 9);
  const auto next_of = [&](const std::vector<uint64_t>& ids) {
    const auto plan = scheduler.next();
    std::vector<uint64_t> found;
    for (const SequenceId id : scheduler.newest_plan()) found.push_back(id.value());
    REQUIRE(found == ids);
    return *plan;
  };
  const std::vector<Plan> plans{next_of({1, 2}), next_of({3, 4}), next_of({5})};
  REQUIRE_FALSE(scheduler.next().has_value());
  (void)answer(scheduler, plans[0], 9);
  (void)answer(scheduler, plans[1], 9);
  (void)next_of({1, 2});
  (void)answer(scheduler, plans[2], 9);
  (void)next_of({3, 4});
  (void)next_of({5});
}

namespace {

/// Completes a plan after runs of `us` microseconds on each of two stages.
void answer_after(Scheduler& scheduler, const Plan& plan, uint64_t number, int64_t us) {
  PlanOutput output;
  for (uint32_t stage = 0; stage < 2; ++stage) {
    output.reports.push_back({.stage = StageId(stage), .plan = PlanId(number), .end_ns = us * 1000});
  }
  for (const PlanSlice& slice : plan.slices) {
    SliceOutput& made = output.slices.emplace_back();
    made.samples.resize(slice.sample_count(), {.token = 9});
  }
  (void)scheduler.complete(output);
}

/// Returns the sequences per plan once eight sequences decode and nothing else is to be done. The two stages take
/// 1000 us and 10 us per token, and the window is six.
std::vector<size_t> spread_of_eight(double transit_us) {
  auto options = small_options();
  options.stage_count = 2;
  options.window = 6;
  options.page_count = 256;
  Scheduler scheduler(options);
  scheduler.set_transit(transit_us);
  for (uint32_t i = 1; i <= 8; ++i) scheduler.add(SequenceId(i), request(2 + i, 50));
  std::deque<Plan> in_flight;
  uint64_t answered = 0;
  for (int turn = 0; turn < 100; ++turn) {
    while (in_flight.size() < options.window) {
      auto plan = scheduler.next();
      if (!plan) break;
      in_flight.push_back(std::move(*plan));
    }
    answer_after(scheduler, in_flight.front(), answered++,
                 1000 + 10 * static_cast<int64_t>(in_flight.front().tokens.size()));
    in_flight.pop_front();
  }
  std::vector<size_t> sizes;
  while (auto plan = scheduler.next()) in_flight.push_back(std::move(*plan));
  for (const Plan& plan : in_flight) sizes.push_back(plan.slices.size());
  return sizes;
}

}  // namespace

TEST_CASE("known costs choose the number of decode plans") {
  REQUIRE(spread_of_eight(0) == std::vector<size_t>{4, 4});
  // Two more plans fill the time while the others are on their way.
  REQUIRE(spread_of_eight(2000) == std::vector<size_t>{2, 2, 2, 2});
}

TEST_CASE("a run that loads host pages is not learnt from") {
  auto options = small_options();
  options.page_count = 8;
  options.context_length = 32;
  options.host_page_count = 64;
  Scheduler scheduler(options);
  uint64_t plans = 0;
  bool has_loaded = false;
  const auto book = [&](const Plan& plan, int64_t us) {
    std::vector<cache::CopyAck> acks;
    for (const cache::PageCopy& copy : plan.copies) {
      has_loaded |= copy.kind == cache::CopyKind::kLoad;
      acks.push_back({copy.id, static_cast<uint32_t>(copy.page_count())});
    }
    REQUIRE_FALSE(scheduler.acknowledge(acks).has_error());
    PlanOutput output = output_of(plan, 9);
    if (!plan.slices.empty()) output.reports = {{.plan = PlanId(plans), .end_ns = us * 1000}};
    ++plans;
    (void)scheduler.complete(output);
  };
  const auto serve = [&](const GenerateRequest& asked, int64_t us) {
    scheduler.add(SequenceId(plans), asked);
    while (!scheduler.empty()) book(*scheduler.next(), us);
    return scheduler.costs().stages().front().relative_error();
  };
  book(scheduler.empty_plan(), 0);  // which asks for host pages that are held
  const GenerateRequest first = request(16, 1);
  double error = serve(first, 260);
  for (uint32_t other = 1; other < 12; ++other) error = serve(request(4 + other, 1), 100 + 10 * (4 + other));
  REQUIRE(error < 0.01);
  REQUIRE_FALSE(has_loaded);
  REQUIRE(serve(first, 500) == error);
  REQUIRE(has_loaded);
  REQUIRE(serve(request(16, 1), 500) > error);
}

TEST_CASE("sequences end by length or stop token or context or abort") {
  Scheduler scheduler(small_options());
  auto stop = request(2, 10);
  stop.sampling.stop_token_ids = {9};
  scheduler.add(SequenceId(1), request(2, 1));
  scheduler.add(SequenceId(2), std::move(stop));
  scheduler.add(SequenceId(3), request(2, 10));
  auto updates = answer(scheduler, *scheduler.next(), 9);
  REQUIRE(updates.size() == 3);
  REQUIRE(updates[0].event.finish == FinishReason::kLength);
  REQUIRE(updates[1].event.finish == FinishReason::kStop);
  REQUIRE_FALSE(updates[2].event.finish.has_value());
  REQUIRE(scheduler.abort(SequenceId(3)));
  REQUIRE_FALSE(scheduler.abort(SequenceId(3)));
  REQUIRE(scheduler.empty());
  REQUIRE(scheduler.free_pages() == 32);
  const Plan closing = scheduler.empty_plan();
  REQUIRE(closing.closes.size() == 3);
  REQUIRE(answer(scheduler, closing, 0).empty());

  scheduler.add(SequenceId(4), request(15, 100));
  scheduler.add(SequenceId(5), request(63, 100));
  for (int turn = 0; turn < 200 && !scheduler.empty(); ++turn) {
    const auto plan = scheduler.next();
    for (const SequenceUpdate& update : answer(scheduler, *plan, 9)) {
      if (update.event.last()) REQUIRE(update.event.finish == FinishReason::kLength);
    }
  }
  REQUIRE(scheduler.empty());
}

TEST_CASE("the output of a sequence aborted in flight is dropped") {
  Scheduler scheduler(small_options());
  scheduler.add(SequenceId(1), request(4, 10));
  const auto plan = scheduler.next();
  REQUIRE(scheduler.abort(SequenceId(1)));
  scheduler.add(SequenceId(2), request(4, 10));
  const auto next = scheduler.next();
  REQUIRE(next->closes == std::vector{plan->slices[0].slot});
  REQUIRE(answer(scheduler, *plan, 9).empty());
  REQUIRE(answer(scheduler, *next, 9).size() == 1);
}

TEST_CASE("without pages the youngest is retracted and resumes later") {
  auto options = small_options();
  options.page_count = 8;
  options.context_length = 32;
  options.new_token_ratio = 0;
  Scheduler scheduler(options);
  scheduler.add(SequenceId(1), request(8, 30));
  scheduler.add(SequenceId(2), request(8, 16));
  std::vector<TokenId> second;
  TokenId token = 100;
  for (int turn = 0; turn < 200 && !scheduler.empty(); ++turn) {
    const auto plan = scheduler.next();
    REQUIRE(plan.has_value());
    ++token;
    for (const SequenceUpdate& update : answer(scheduler, *plan, token)) {
      if (update.id == SequenceId(2))
        second.insert(second.end(), update.event.tokens.begin(), update.event.tokens.end());
    }
  }
  REQUIRE(scheduler.empty());
  REQUIRE(scheduler.retraction_count() > 0);
  REQUIRE(second.size() == 16);
  REQUIRE(scheduler.free_pages() == 8);
}

TEST_CASE("a prompt between its chunks makes room for those before it") {
  auto options = small_options();
  options.window = 2;
  options.page_count = 16;
  options.chunked_prefill_size = 2;
  options.new_token_ratio = 0;
  Scheduler scheduler(options);
  scheduler.add(SequenceId(1), request(7, 40));
  for (int chunk = 0; chunk < 4; ++chunk) (void)answer(scheduler, *scheduler.next(), 9);
  scheduler.add(SequenceId(2), request(4 * 13, 1));  // all pages but the first's two and one for each
  std::deque<Plan> in_flight;
  uint64_t longest_wait = 0;
  uint64_t wait = 0;
  for (int turn = 0; turn < 40; ++turn) {
    while (in_flight.size() < options.window) {
      auto plan = scheduler.next();
      if (!plan) break;
      in_flight.push_back(std::move(*plan));
    }
    ++wait;
    for (const SequenceUpdate& update : answer(scheduler, in_flight.front(), 9)) {
      if (update.id == SequenceId(1)) longest_wait = std::max(longest_wait, std::exchange(wait, 0));
    }
    in_flight.pop_front();
  }
  REQUIRE(longest_wait <= 2 * options.window);
}

TEST_CASE("a sequence alone reaches the full context") {
  auto options = small_options();
  options.page_count = 8;
  options.context_length = 32;
  Scheduler scheduler(options);
  GenerateRequest first = request(12, 1);
  GenerateRequest second = first;
  second.max_tokens = 100;
  scheduler.add(SequenceId(1), first);
  scheduler.add(SequenceId(2), second);
  size_t drawn = 0;
  for (int turn = 0; turn < 100 && !scheduler.empty(); ++turn) {
    const auto plan = scheduler.next();
    REQUIRE(plan.has_value());
    for (const SequenceUpdate& update : answer(scheduler, *plan, 9)) {
      if (update.id == SequenceId(2)) drawn += update.event.tokens.size();
    }
  }
  REQUIRE(scheduler.empty());
  REQUIRE(drawn == 20);
}

TEST_CASE("sampled tokens are cached while their sequence runs") {
  Scheduler scheduler(small_options());
  GenerateRequest first = request(6, 30);
  GenerateRequest second = first;
  second.prompt.insert(second.prompt.end(), 7, 500);  // six drawn tokens of those, and a last one to compute
  scheduler.add(SequenceId(1), first);
  for (int step = 0; step < 7; ++step) (void)answer(scheduler, *scheduler.next(), 500);
  REQUIRE(scheduler.running_count() == 1);
  scheduler.add(SequenceId(2), second);
  const auto plan = scheduler.next();
  REQUIRE(plan->opens.size() == 1);
  REQUIRE(plan->opens[0].cached_length == 12);
  scheduler.check_invariants();
}

TEST_CASE("without the ring running sequences end and the queue stays") {
  Scheduler scheduler(small_options());
  for (uint64_t id = 1; id <= 12; ++id) scheduler.add(SequenceId(id), request(6, 10));
  (void)scheduler.next();
  const size_t running = scheduler.running_count();
  REQUIRE(running > 0);
  REQUIRE(scheduler.on_ring_lost().size() == running);
  REQUIRE(scheduler.waiting_count() == 12 - running);
  REQUIRE(scheduler.in_flight_plans() == 0);
  REQUIRE(scheduler.free_pages() == 32);
  REQUIRE(scheduler.empty_plan().closes.empty());
}
