#include <catch2/catch.hpp>
#include <deque>
#include <limits>
#include <optional>

#include "sched/scheduler/startup_profiler.h"
#include "support/mentions.h"
#include "sched/scheduler/scheduler.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

SchedulerOptions options_with(QueuePolicy policy) {
  SchedulerOptions options;
  options.page_size = 4;
  options.page_count = 64;
  options.max_running = 1;
  options.chunked_prefill_size = 16;
  options.context_length = 128;
  options.policy = policy;
  return options;
}

GenerateRequest request(size_t prompt, uint32_t max_tokens, int32_t priority = 0) {
  GenerateRequest made;
  made.prompt.assign(prompt, 1);
  made.max_tokens = max_tokens;
  made.priority = priority;
  return made;
}

std::vector<SequenceUpdate> answer(Scheduler& scheduler, const Plan& plan) {
  PlanOutput output;
  for (const PlanSlice& slice : plan.slices) {
    SliceOutput& made = output.slices.emplace_back();
    made.samples.resize(slice.sample_count(), {.token = 9});
  }
  return scheduler.complete(output);
}

/// Runs until no sequence is left, and returns the order in which they ended.
std::vector<uint64_t> run_out(Scheduler& scheduler) {
  std::vector<uint64_t> ended;
  for (int turn = 0; turn < 2000 && !scheduler.empty(); ++turn) {
    const auto plan = scheduler.next();
    REQUIRE(plan.has_value());
    for (const SequenceUpdate& update : answer(scheduler, *plan)) {
      if (update.event.last()) ended.push_back(update.id.value());
    }
  }
  REQUIRE(scheduler.empty());
  return ended;
}

}  // namespace

TEST_CASE("the policy orders the queue") {
  const auto order = [](QueuePolicy policy) {
    Scheduler scheduler(options_with(policy));
    scheduler.add(SequenceId(1), request(12, 1, 0));
    scheduler.add(SequenceId(2), request(4, 1, 1));
    scheduler.add(SequenceId(3), request(8, 1, 2));
    return run_out(scheduler);
  };
  REQUIRE(order(QueuePolicy::kFcfs) == std::vector<uint64_t>{1, 2, 3});
  REQUIRE(order(QueuePolicy::kShortest) == std::vector<uint64_t>{2, 3, 1});
  REQUIRE(order(QueuePolicy::kPriority) == std::vector<uint64_t>{3, 2, 1});
}

TEST_CASE("a larger priority takes a slot and the victim resumes") {
  Scheduler scheduler(options_with(QueuePolicy::kPriority));
  scheduler.add(SequenceId(1), request(4, 20, 0));
  for (int turn = 0; turn < 5; ++turn) (void)answer(scheduler, *scheduler.next());
  scheduler.add(SequenceId(2), request(4, 3, 1));
  REQUIRE(run_out(scheduler) == std::vector<uint64_t>{2, 1});
  REQUIRE(scheduler.retraction_count() == 1);
  REQUIRE(scheduler.free_pages() == 64);
}

TEST_CASE("nobody is preempted if that makes too little room") {
  auto options = options_with(QueuePolicy::kPriority);
  options.max_running = 8;
  options.context_length = 240;
  Scheduler scheduler(options);
  scheduler.add(SequenceId(1), request(100, 40, 5));
  scheduler.add(SequenceId(2), request(4, 100, 0));
  (void)answer(scheduler, *scheduler.next());
  // Without the second there are pages for it, but not for the tokens that the first is expected to generate.
  GenerateRequest third = request(120, 100, 5);
  third.prompt.assign(120, 2);  // not a prompt that the first has in the cache
  scheduler.add(SequenceId(3), std::move(third));
  for (int turn = 0; turn < 40; ++turn) (void)answer(scheduler, *scheduler.next());
  REQUIRE(scheduler.retraction_count() == 0);
  (void)run_out(scheduler);
}

TEST_CASE("nothing starves behind endless favourites") {
  for (const QueuePolicy policy : {QueuePolicy::kShortest, QueuePolicy::kPriority}) {
    Scheduler scheduler(options_with(policy));
    scheduler.add(SequenceId(1), request(100, 2, 0));
    bool ended = false;
    uint64_t next = 2;
    for (int turn = 0; turn < 1000 && !ended; ++turn) {
      while (scheduler.waiting_count() < 3) scheduler.add(SequenceId(next++), request(4, 1, 5));
      const auto plan = scheduler.next();
      for (const SequenceUpdate& update : answer(scheduler, *plan)) ended |= update.id == SequenceId(1);
    }
    REQUIRE(ended);
  }
}

TEST_CASE("a begun prompt does not starve between its chunks either") {
  auto options = options_with(QueuePolicy::kPriority);
  options.max_running = 4;
  Scheduler scheduler(options);
  scheduler.add(SequenceId(1), request(100, 1, 0));
  (void)answer(scheduler, *scheduler.next());
  REQUIRE(scheduler.running_count() == 1);
  uint64_t next = 2;
  bool ended = false;
  for (; next < 1000 && !ended;) {
    // Each fills a micro-batch, shares no page with another, and has a larger priority.
    GenerateRequest favourite = request(16, 1, 5);
    favourite.prompt.front() = static_cast<TokenId>(next);
    scheduler.add(SequenceId(next++), std::move(favourite));
    for (const SequenceUpdate& update : answer(scheduler, *scheduler.next())) ended |= update.id == SequenceId(1);
  }
  REQUIRE(ended);
  REQUIRE(next > kMaxBypasses);  // else nobody was preferred
  REQUIRE(next < kMaxBypasses + 20);
}

TEST_CASE("short prompts ride along with a long one") {
  auto options = options_with(QueuePolicy::kFcfs);
  options.max_running = 8;
  Scheduler scheduler(options);
  scheduler.add(SequenceId(1), request(100, 1));
  (void)answer(scheduler, *scheduler.next());
  scheduler.add(SequenceId(2), request(100, 1));
  scheduler.add(SequenceId(3), request(4, 1));
  const auto plan = scheduler.next();
  REQUIRE(plan->slices.size() == 2);
  REQUIRE(plan->slices[0].token_count == 4);
  REQUIRE(plan->slices[1].token_count == 12);
  REQUIRE(plan->slices[1].prefix == 16);
  const auto updates = answer(scheduler, *plan);
  REQUIRE(updates.size() == 1);
  REQUIRE(updates[0].id == SequenceId(3));
}

TEST_CASE("admission leaves room for expected tokens") {
  auto options = options_with(QueuePolicy::kFcfs);
  options.max_running = 8;
  options.page_count = 32;
  options.new_token_ratio = 1;
  Scheduler careful(options);
  options.new_token_ratio = 0;
  Scheduler careless(options);
  for (Scheduler* scheduler : {&careful, &careless}) {
    for (uint64_t id = 1; id <= 8; ++id) scheduler->add(SequenceId(id), request(4, 40));
    (void)run_out(*scheduler);
  }
  REQUIRE(careful.retraction_count() < careless.retraction_count());
}

TEST_CASE("a prompt with an unknown token is refused") {
  auto options = options_with(QueuePolicy::kFcfs);
  const auto refusal = [&](uint32_t vocab_size,
                           TokenId token) -> std::string {  // its message, if it is the right error
    options.vocab_size = vocab_size;
    GenerateRequest made = request(3, 1);
    made.prompt.push_back(token);
    const auto found = Scheduler(options).admissible(made);
    if (!found.has_error()) return {};
    REQUIRE(found.error().code == ErrorCode::kInvalidArgument);
    return found.error().message;
  };
  REQUIRE(refusal(50, 49).empty());
  REQUIRE_THAT(refusal(50, 50), test::Mentions("token 50", "0", "49"));
  REQUIRE_THAT(refusal(50, -1), test::Mentions("token -1", "0", "49"));
  REQUIRE(refusal(0, std::numeric_limits<TokenId>::max()).empty());
  REQUIRE_FALSE(refusal(0, -1).empty());
}

TEST_CASE("pause keeps or retracts or aborts and resume goes on") {
  auto options = options_with(QueuePolicy::kFcfs);
  options.max_running = 2;
  Scheduler scheduler(options);
  for (uint64_t id = 1; id <= 3; ++id) scheduler.add(SequenceId(id), request(4, 10));
  (void)answer(scheduler, *scheduler.next());
  const auto in_flight = scheduler.next();
  REQUIRE(scheduler.pause(PauseMode::kInPlace).empty());
  REQUIRE(answer(scheduler, *in_flight).size() == 2);
  REQUIRE_FALSE(scheduler.next().has_value());
  REQUIRE(scheduler.running_count() == 2);
  scheduler.resume();
  const auto last = scheduler.next();
  REQUIRE(scheduler.pause(PauseMode::kRetract).empty());
  REQUIRE(scheduler.running_count() == 0);
  REQUIRE(scheduler.free_pages() == 64);
  (void)answer(scheduler, *last);
  scheduler.resume();
  (void)answer(scheduler, *scheduler.next());
  REQUIRE(scheduler.pause(PauseMode::kAbort).size() == 3);
  REQUIRE(scheduler.empty());
  REQUIRE(scheduler.free_pages() == 64);
}

TEST_CASE("the profile keeps its bounds and closes every slot") {
  auto options = options_with(QueuePolicy::kFcfs);
  options.chunking = GENERATE(Chunking::kBalanced, Chunking::kPublished);
  options.max_running = 4;
  options.vocab_size = GENERATE(1u, 2u, 31u, 150000u);
  Scheduler scheduler(options);
  scheduler.add(SequenceId(1), request(4, 1));
  int open = 0;
  int plans = 0;
  size_t longest = 0;
  for (; scheduler.profiling(); ++plans) {
    const auto plan = scheduler.next();
    REQUIRE(plan.has_value());
    REQUIRE_FALSE(scheduler.next().has_value());
    open += static_cast<int>(plan->opens.size()) - static_cast<int>(plan->closes.size());
    REQUIRE(plan->tokens.size() <= max_prompt_tokens(options.chunking, options.chunked_prefill_size));
    longest = std::max(longest, plan->tokens.size());
    for (const PageId page : plan->new_pages) REQUIRE(page.value() < options.page_count);
    for (const TokenId token : plan->tokens) REQUIRE((token >= 0 && static_cast<uint32_t>(token) < options.vocab_size));
    REQUIRE(answer(scheduler, *plan).empty());
  }
  REQUIRE(plans > 10);
  REQUIRE(longest == (options.chunking == Chunking::kPublished ? 20 : 16));  // the published one goes to 1.25 times
  REQUIRE(open == 0);
  REQUIRE(run_out(scheduler) == std::vector<uint64_t>{1});
}

TEST_CASE("stages of one machine are also timed at once") {
  auto options = options_with(QueuePolicy::kFcfs);
  options.chunking = Chunking::kBalanced;
  options.max_running = GENERATE(1u, 2u, 4u, 40u);
  options.page_count = GENERATE(32u, 300u);
  options.chunked_prefill_size = 64;
  options.stage_count = 4;
  options.window = 6;
  options.processors = 2;
  Scheduler scheduler(options);
  std::deque<Plan> in_flight;
  size_t max_in_flight = 0;
  int open = 0;
  uint64_t id = 0;
  while (scheduler.profiling()) {
    while (in_flight.size() < options.window) {
      auto plan = scheduler.next();
      if (!plan) break;
      plan->id = PlanId(id++);
      open += static_cast<int>(plan->opens.size()) - static_cast<int>(plan->closes.size());
      REQUIRE(open <= static_cast<int>(options.max_running));
      REQUIRE(plan->tokens.size() <= options.chunked_prefill_size);
      for (const PageId page : plan->new_pages) REQUIRE(page.value() < options.page_count);
      in_flight.push_back(std::move(*plan));
    }
    REQUIRE_FALSE(in_flight.empty());
    max_in_flight = std::max(max_in_flight, in_flight.size());
    PlanOutput output;
    output.id = in_flight.front().id;
    for (size_t i = 0; i < in_flight.front().slices.size(); ++i) output.slices.emplace_back().samples = {{.token = 1}};
    for (uint32_t stage = 0; stage < options.stage_count; ++stage) {
      const auto begin = static_cast<int64_t>(1000 * (output.id.value() + stage));
      output.reports.push_back({StageId(stage), output.id, 0, 0, begin, begin + 1000});
    }
    (void)scheduler.complete(output);
    in_flight.pop_front();
  }
  REQUIRE(open == 0);
  REQUIRE(max_in_flight == options.window);
}

struct Profiled {
  size_t longest = 0;  // tokens of a plan
  uint64_t plans = 0;
  double us = 0;
};

// Profiles two stages: one takes `token_us` per token and reports a plan later, the other takes a third of it.
Profiled profiled(Scheduler& scheduler, double token_us) {
  Profiled result;
  std::optional<StageReport> late;
  for (; scheduler.profiling(); ++result.plans) {
    const auto plan = scheduler.next();
    REQUIRE(plan.has_value());
    result.longest = std::max(result.longest, plan->tokens.size());
    PlanOutput output;
    output.slices.resize(plan->slices.size());
    for (const uint32_t stage : {0u, 1u}) {
      const double us = 20 + token_us * static_cast<double>(plan->tokens.size()) / (stage == 0 ? 1 : 3);
      const StageReport report{StageId(stage), PlanId(result.plans), 0, 0, 0, static_cast<int64_t>(us * 1e3)};
      result.us += plan->tokens.empty() ? 0 : us;
      if (stage == 1) output.reports.push_back(report);
      if (stage == 0 && late) output.reports.push_back(*late);
      if (stage == 0) late = report;
    }
    (void)scheduler.complete(output);
  }
  return result;
}

TEST_CASE("the profile takes prompts as long as its time allows") {
  auto options = options_with(QueuePolicy::kFcfs);
  options.chunking = Chunking::kBalanced;
  options.chunked_prefill_size = 2048;
  options.page_count = 512;
  options.page_size = 16;
  options.context_length = 8192;
  options.max_running = 32;
  options.stage_count = 2;
  const auto [token_us, longest] =
      GENERATE(table<double, size_t>({{1, 2048}, {300, 2048}, {1000, 1024}, {3000, 256}, {20'000, 64}, {1e6, 64}}));
  CAPTURE(token_us);
  Scheduler scheduler(options);
  const Profiled found = profiled(scheduler, token_us);
  REQUIRE(found.longest == longest);
  if (token_us <= 3000) REQUIRE(found.us <= StartupProfiler::kBudgetUs);
  REQUIRE(scheduler.costs().usable());
  BatchShape shape;
  shape.add_prefill(100, 64);
  REQUIRE(scheduler.costs().slowest_us(shape) == Approx(20 + 64 * token_us).epsilon(0.02));
}

TEST_CASE("outliers of one round are clamped") {
  const BatchShape decode{.decode_count = 8, .decode_context = 800};
  const BatchShape prompt{.prefill_tokens = 128, .prefill_pairs = 128 * 128};
  const BatchShape behind{.prefill_tokens = 64, .prefill_pairs = 64 * 64 + 2 * 64 * 192};
  const CostCoefficients truth{5000, 400, 0.05, 300, 0.5};
  std::vector<ProfileTiming> timings;
  for (int i = 1; i <= 4; ++i) {
    for (BatchShape shape : {decode, prompt, behind}) {
      shape.prefill_tokens *= i;
      shape.prefill_pairs *= i * i;
      shape.decode_count *= i;
      timings.push_back({StageId(0), shape, truth.predict_us(shape)});
      timings.push_back({StageId(1), shape, 2 * truth.predict_us(shape)});
    }
  }
  auto disturbed = timings;
  for (const size_t index : {3u, 7u, 12u, 18u}) disturbed[index].run_us *= 7;
  clamp_outliers(disturbed);
  for (size_t i = 0; i < timings.size(); ++i) {
    REQUIRE(disturbed[i].run_us <= Approx(1.5 * timings[i].run_us).epsilon(0.05));
    REQUIRE(disturbed[i].run_us >= timings[i].run_us);
  }
}

TEST_CASE("the profile of a slow ring ends after fewer rounds") {
  const auto options = [] {
    auto made = options_with(QueuePolicy::kFcfs);
    made.chunking = Chunking::kBalanced;
    made.max_running = 4;
    made.stage_count = 2;
    return made;
  }();
  Scheduler fast(options);
  Scheduler slow(options);
  const uint64_t fast_plans = profiled(fast, 1000).plans;
  const uint64_t slow_plans = profiled(slow, 1e6).plans;
  constexpr uint64_t kOnce = 4;  // three probes, the closing plan
  REQUIRE(slow_plans > kOnce);
  REQUIRE(fast_plans - kOnce == StartupProfiler::kRounds * (slow_plans - kOnce));
}

TEST_CASE("the profile takes the shortest of its rounds") {
  auto options = options_with(QueuePolicy::kFcfs);
  options.chunking = Chunking::kBalanced;
  options.max_running = 4;
  options.context_length = 200;  // 13 plans a round
  Scheduler scheduler(options);
  uint64_t id = 7;  // the ring has had other plans
  for (uint64_t i = 0; i < id; ++i) (void)answer(scheduler, scheduler.empty_plan());
  int plans = 0;
  while (scheduler.profiling()) {
    auto plan = scheduler.next();
    REQUIRE(plan.has_value());
    PlanOutput output;
    output.id = PlanId(id);
    double us = 100;
    for (const PlanSlice& slice : plan->slices) {
      us += 10 * slice.token_count;
      output.slices.emplace_back().samples = {{.token = 1}};
    }
    // The first plan touches memory, and two of three rounds are disturbed.
    const double disturbed = plans == 0 ? 50 : 1 + 0.8 * (plans % 3);
    output.reports.push_back({StageId(0), output.id, 0, 0, 0, static_cast<int64_t>(us * disturbed * 1e3)});
    (void)scheduler.complete(output);
    ++plans;
    ++id;
  }
  REQUIRE(scheduler.costs().usable());
  BatchShape shape;
  shape.add_prefill(0, options.chunked_prefill_size);
  REQUIRE(scheduler.costs().slowest_us(shape) == Approx(100 + 10.0 * options.chunked_prefill_size).epsilon(0.02));
}
