#include "sched/scheduler/waiting_queue.h"

#include "sched/scheduler/scheduler_parts.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::sched;

TEST_CASE("a request that can never run is refused with its numbers") {
  auto options = small_options();
  options.vocab_size = 50;
  SchedulerState state(options);
  const WaitingQueue queue(state);
  GenerateRequest request;
  REQUIRE(queue.admissible(request).error().code == ErrorCode::kInvalidArgument);
  request.prompt.assign(63, 49);
  REQUIRE_FALSE(queue.admissible(request).has_error());
  request.prompt.push_back(0);
  REQUIRE(queue.admissible(request).error().code == ErrorCode::kInvalidArgument);
  REQUIRE_THAT(queue.admissible(request).error().message, test::Mentions("64 tokens", "context of 64", "63"));
  request.max_tokens = 0;  // scoring needs no room for a token
  REQUIRE_FALSE(queue.admissible(request).has_error());
  for (const TokenId unknown : {-1, 50}) {
    request.prompt.front() = unknown;
    REQUIRE(queue.admissible(request).error().code == ErrorCode::kInvalidArgument);
  }
}

TEST_CASE("taking a sequence counts a bypass for those before it") {
  SchedulerParts parts(small_options());
  Sequence& first = parts.add(1, 4);
  Sequence& second = parts.add(2, 4);
  Sequence& third = parts.add(3, 4);
  parts.queue.take(second);
  REQUIRE(first.bypasses == 1);
  REQUIRE(third.bypasses == 0);
  REQUIRE(parts.state.waiting == std::deque<Sequence*>{&first, &third});
}

TEST_CASE("the policy chooses the next and a prefetch delays it") {
  auto options = small_options();
  options.policy = QueuePolicy::kPriority;
  options.host_page_count = 8;
  options.has_store = true;
  options.prefetch_policy = PrefetchPolicy::kWaitComplete;
  SchedulerParts parts(options);
  REQUIRE(parts.queue.next() == nullptr);
  const cache::PageCopy verify = parts.state.cache.take_copies().at(0);
  REQUIRE_FALSE(parts.state.cache.acknowledge({verify.id, 0}).has_error());
  Sequence& short_prompt = parts.add(1, 4, 10, 1);  // no full page before its last token: nothing to prefetch
  Sequence& preferred = parts.add(2, 20, 10, 5);
  REQUIRE(parts.queue.awaits_prefetch(preferred));
  REQUIRE(parts.queue.next() == &short_prompt);
  parts.queue.stop_prefetch_wait(SequenceId(2));
  parts.queue.stop_prefetch_wait(SequenceId(77));
  REQUIRE(parts.queue.next() == &preferred);
}

TEST_CASE("a sequence that is put back goes first and finds its pages") {
  SchedulerParts parts(small_options());
  Sequence& running = parts.start(1, 9);
  (void)parts.add(2, 4);
  parts.queue.put_back(running);
  REQUIRE(parts.queue.next() == &running);
  REQUIRE_FALSE(running.running);
  REQUIRE(running.tokens.size() == 10);
  REQUIRE(parts.queue.match(running).pages == 2);
  REQUIRE(running.computed() == 8);
  parts.state.check_invariants();
}

TEST_CASE("a match follows the cache and scoring matches nothing") {
  SchedulerParts parts(small_options());
  const auto queue_one = [&](uint64_t id, int32_t prompt_top_logprobs) -> Sequence& {
    GenerateRequest request;
    request.prompt.assign(9, 1);
    request.prompt_top_logprobs = prompt_top_logprobs;
    parts.queue.add(SequenceId(id), std::move(request));
    return *parts.state.find(SequenceId(id));
  };
  Sequence& waiting = queue_one(2, -1);
  Sequence& scored = queue_one(3, 0);
  REQUIRE(parts.queue.match(waiting).pages == 0);
  (void)parts.start(1, 9);  // the same tokens
  REQUIRE(parts.queue.match(waiting).pages == 2);
  REQUIRE(parts.queue.match(scored).pages == 0);
}

TEST_CASE("over the turns every waiting sequence is looked up again") {
  SchedulerParts parts(small_options());
  for (uint64_t id = 1; id <= 40; ++id) (void)parts.add(id, 9);
  const auto looked_up = [&] {
    return std::ranges::count_if(
        parts.state.waiting, [&](const Sequence* one) { return one->match_version == parts.state.cache.version(); });
  };
  parts.queue.refresh_matches();
  REQUIRE(looked_up() == 16);
  for (int turn = 0; turn < 2; ++turn) {
    ++parts.state.turn;
    parts.queue.refresh_matches();
  }
  REQUIRE(looked_up() == 40);
}

TEST_CASE("only the last row can follow a cached prefix") {
  const auto cached_pages = [](Pooling pooling) {
    SchedulerParts parts(small_options());
    (void)parts.start(1, 12);
    parts.state.remove(*parts.state.find(SequenceId(1)));
    parts.queue.add(SequenceId(2), {.prompt = std::vector<TokenId>(13, 1), .max_tokens = 0, .pooling = pooling});
    return parts.queue.match(*parts.state.find(SequenceId(2))).pages;
  };
  REQUIRE(cached_pages(Pooling::kLast) == 3);
  REQUIRE(cached_pages(Pooling::kMean) == 0);
  REQUIRE(cached_pages(Pooling::kFirst) == 0);
}

TEST_CASE("a ring without an output head takes prompts to pool") {
  auto options = small_options();
  options.has_output_head = false;
  SchedulerParts parts(options);
  REQUIRE(parts.queue.admissible({.prompt = {1}}).error().code == ErrorCode::kInvalidArgument);
  const GenerateRequest pooled{
      .prompt = std::vector<TokenId>(options.context_length, 1), .max_tokens = 0, .pooling = Pooling::kLast};
  REQUIRE_FALSE(parts.queue.admissible(pooled).has_error());
}
