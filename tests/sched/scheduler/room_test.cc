#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "comm/tcp_link.h"
#include "sched/scheduler/scheduler.h"

/// Tests of which sequence gives way when pages run out, and of which may overtake another.
using namespace millrace;
using namespace millrace::sched;

namespace {

SchedulerOptions options_with(QueuePolicy policy, uint32_t page_count) {
  return {.page_size = 4,
          .page_count = page_count,
          .max_running = 16,
          .chunked_prefill_size = 16,
          .context_length = 4 * page_count,
          .policy = policy};
}

/// A scheduler whose plans are completed at once, and a record of its sequences.
struct Watched {
  explicit Watched(const SchedulerOptions& options) : scheduler(options) {}

  /// Adds a request whose prompt shares no page with those of other ids.
  void add(uint64_t id, size_t prompt, uint32_t max_tokens, int32_t priority = 0) {
    GenerateRequest request;
    request.prompt.assign(prompt, static_cast<TokenId>(id));
    request.max_tokens = max_tokens;
    request.priority = priority;
    scheduler.add(SequenceId(id), std::move(request));
  }

  void step() {
    auto plan = scheduler.next();
    if (!plan) plan = scheduler.empty_plan();
    largest_plan = std::max(largest_plan, plan->encode().size());
    for (const SlotId slot : plan->closes) {
      const auto holder = holders.find(slot);
      if (holder == holders.end()) continue;
      if (!ended.contains(holder->second)) sent_back.push_back(holder->second);
      holders.erase(holder);
    }
    PlanOutput output;
    for (size_t i = 0; i < plan->slices.size(); ++i) {
      const uint64_t id = scheduler.newest_plan()[i].value();
      holders[plan->slices[i].slot] = id;
      if (drawn.try_emplace(id).second) begun.push_back(id);
      SliceOutput& made = output.slices.emplace_back();
      made.samples.resize(plan->slices[i].sample_count(), {.token = 9});
    }
    for (const cache::PageCopy& copy : plan->copies) answer(copy);
    for (const SequenceUpdate& update : scheduler.complete(output)) {
      drawn[update.id.value()] += update.event.tokens.size();
      if (update.event.last()) ended.insert(update.id.value());
    }
    scheduler.check_invariants();
  }
  /// Steps until `count` sequences have been retracted.
  void exhaust_pages(size_t count) {
    for (int turn = 0; turn < 1000 && sent_back.size() < count; ++turn) step();
    REQUIRE(sent_back.size() == count);
  }
  void run_out() {
    for (int turn = 0; turn < 5000 && !scheduler.empty(); ++turn) step();
    REQUIRE(scheduler.empty());
  }

  Scheduler scheduler;
  bool store_is_silent = false;      // else it has nothing, and takes what it gets
  size_t largest_plan = 0;           // bytes of its message
  std::vector<uint64_t> begun;       // in order of their first slices
  std::vector<uint64_t> sent_back;   // in order
  std::map<uint64_t, size_t> drawn;  // tokens
  std::set<uint64_t> ended;

 private:
  void answer(const cache::PageCopy& copy) {
    const bool is_probe = copy.kind == cache::CopyKind::kProbe;
    if (store_is_silent && (is_probe || copy.kind == cache::CopyKind::kPersist)) return;
    const auto done = static_cast<uint32_t>(is_probe ? 0 : copy.page_count());
    REQUIRE_FALSE(scheduler.acknowledge({{copy.id, done}}).has_error());
  }

  std::map<SlotId, uint64_t> holders;
};

struct Contender {
  uint64_t id;  ///< in a plan, the smaller one wants its page first
  size_t prompt;
  int32_t priority;
};

/// Returns options of a scheduler that expects no sequence to generate any token.
SchedulerOptions contest_options(uint32_t page_count) {
  auto options = options_with(QueuePolicy::kPriority, page_count);
  options.new_token_ratio = 0;
  return options;
}

/// Adds the contenders one after the other; each will generate 14 tokens.
void contest(Watched& world, std::initializer_list<Contender> contenders) {
  for (const Contender& one : contenders) {
    world.add(one.id, one.prompt, 14, one.priority);
    world.step();
  }
  REQUIRE(world.scheduler.running_count() == contenders.size());
}

}  // namespace

TEST_CASE("without pages the lowest and latest priority gives way") {
  Watched world(contest_options(8));
  contest(world, {{2, 1, 0}, {3, 1, 0}, {1, 4, 2}, {4, 4, 1}});
  world.exhaust_pages(3);
  REQUIRE(world.sent_back == std::vector<uint64_t>{3, 2, 4});
  world.run_out();
  for (const uint64_t id : {1, 2, 3, 4}) REQUIRE(world.drawn[id] == 14);
}

TEST_CASE("nobody gives way to a smaller priority") {
  Watched world(contest_options(6));
  contest(world, {{2, 1, 1}, {1, 4, 0}, {3, 4, 1}});
  world.exhaust_pages(1);
  REQUIRE(world.sent_back == std::vector<uint64_t>{1});
  world.run_out();
  for (const uint64_t id : {1, 2, 3}) REQUIRE(world.drawn[id] == 14);
}

TEST_CASE("admission grows bolder until pages run out") {
  auto options = options_with(QueuePolicy::kFcfs, 32);
  Watched world(options);
  uint64_t id = 1;
  const auto admitted = [&] {
    for (int i = 0; i < 16; ++i) world.add(id++, 1, 40);
    world.step();
    return world.scheduler.running_count();
  };
  const auto abort_all = [&] {
    for (uint64_t any = 1; any < id; ++any) (void)world.scheduler.abort(SequenceId(any));
    REQUIRE(world.scheduler.empty());
  };
  const size_t at_first = admitted();
  REQUIRE(at_first == 3);  // 40 tokens, and 0.7 of that expected, are seven pages for each
  abort_all();
  for (int alone = 0; alone < 7; ++alone) {
    world.add(id++, 1, 100);
    world.run_out();
  }
  REQUIRE(admitted() == 11);  // with a page for each
  world.exhaust_pages(world.sent_back.size() + 1);
  abort_all();
  REQUIRE(admitted() == at_first);
}

TEST_CASE("a waiting prompt is overtaken a bounded number of times") {
  Watched world(options_with(QueuePolicy::kFcfs, 512));
  world.add(1, 1200, 1);  // a hundred plans, in which short ones go along
  world.step();
  world.add(2, 40, 1);
  for (uint64_t id = 100; !world.drawn.contains(2); ++id) {
    REQUIRE(id < 300);
    world.add(id, 4, 1);
    world.step();
  }
  REQUIRE(world.begun.size() == 1 + kMaxBypasses + 1);
  REQUIRE(world.begun.back() == 2);
  world.run_out();
}

TEST_CASE("a prefetch delays nobody but its own request") {
  auto options = options_with(QueuePolicy::kFcfs, 1024);
  options.host_page_count = 8;
  options.has_store = true;
  options.prefetch_policy = PrefetchPolicy::kTimeout;
  Watched world(options);
  world.step();  // the stage says what it holds
  world.add(1, 3600, 1);
  while (!world.drawn.contains(1)) world.step();
  world.store_is_silent = true;
  world.add(2, 40, 1);
  uint64_t id = 100;
  const auto offer_short_ones = [&](int count) {
    const size_t before = world.begun.size();
    for (; count > 0; --count) {
      world.add(id++, 3, 1);
      world.step();
    }
    return world.begun.size() - before;
  };
  REQUIRE(offer_short_ones(2 * kMaxBypasses) == 2 * kMaxBypasses);
  world.scheduler.stop_prefetch_wait(SequenceId(2));
  REQUIRE(offer_short_ones(20) == 0);
  REQUIRE_FALSE(world.drawn.contains(2));  // it is no short one, and the long one has its turn
  while (!world.drawn.contains(2)) world.step();
  REQUIRE(world.begun.back() == 2);
  world.run_out();
}

TEST_CASE("a sequence alone does not wait for a store that hangs") {
  auto options = options_with(QueuePolicy::kFcfs, 8);
  options.host_page_count = 64;
  options.has_store = true;
  Watched world(options);
  world.step();  // the stage says what it holds
  world.store_is_silent = true;
  // Both generate the same, so that the second has copies of pages that the cache has from the first.
  for (const uint64_t id : {1, 2}) {
    GenerateRequest request;
    request.prompt.assign(12, 1);
    request.max_tokens = id == 1 ? 1 : 100;
    world.scheduler.add(SequenceId(id), std::move(request));
  }
  world.run_out();
  REQUIRE(world.drawn[2] == 20);
}

TEST_CASE("cached pages of a priority preempt nobody") {
  Watched world(options_with(QueuePolicy::kPriority, 64));
  world.add(1, 100, 40, 5);
  world.add(2, 60, 20, 0);
  while (!world.drawn.contains(2) || world.drawn[2] == 0) world.step();
  GenerateRequest third;
  third.prompt.assign(60, 2);
  third.prompt.resize(150, 3);
  third.max_tokens = 4;
  third.priority = 5;
  world.scheduler.add(SequenceId(3), std::move(third));
  for (int turn = 0; turn < 5; ++turn) world.step();
  REQUIRE(world.sent_back.empty());
  REQUIRE_FALSE(world.drawn.contains(3));
  world.run_out();
}

TEST_CASE("the histories of a plan's opens fit its message") {
  SchedulerOptions options = options_with(QueuePolicy::kFcfs, 2048);
  options.page_size = 64;
  options.max_running = 128;
  options.chunked_prefill_size = 8192;
  options.context_length = 70'000;
  Watched world(options);
  for (uint64_t id = 0; id < 100; ++id) {
    GenerateRequest request;
    request.prompt.assign(65'600, 1);
    request.max_tokens = 1;
    request.sampling.repetition_penalty = 1.1F;
    world.scheduler.add(SequenceId(id), std::move(request));
  }
  world.run_out();
  REQUIRE(world.largest_plan <= comm::TcpLinkOptions().max_plan_bytes);
  REQUIRE(world.largest_plan > sizeof(TokenId) * 2 * 65'600);  // though several go together
}
