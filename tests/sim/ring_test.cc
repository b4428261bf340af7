#include <catch2/catch.hpp>
#include <set>

#include "base/random.h"
#include "sim/simulated_ring.h"
#include "sim/simulated_store.h"

using namespace millrace;
using namespace std::chrono_literals;

namespace {

/// The stages have been timed by then, and the ring is ready.
constexpr async::Duration kProfileEnd = 1s;

/// What one client asked for and what came of it.
struct Job {
  sched::GenerateRequest request;
  async::Duration arrival{};
  std::optional<size_t> leave_after;  ///< destroys its stream after so many tokens
  std::vector<TokenId> tokens;
  uint32_t cached_tokens = 0;
  int endings = 0;
  std::optional<sched::FinishReason> finish;
  std::optional<Error> error;
  bool refused = false;
  bool left = false;
};

asio::awaitable<void> act_as_client(async::Runtime& runtime, sched::Engine& engine, Job& job) {
  co_await async::sleep_for(runtime, job.arrival);
  auto stream = engine.submit(job.request, runtime);
  if (stream.has_error()) {
    job.refused = true;
    job.error = stream.error();
    co_return;
  }
  for (;;) {
    const sched::GenerateEvent event = co_await (*stream)->next();
    job.tokens.insert(job.tokens.end(), event.tokens.begin(), event.tokens.end());
    job.cached_tokens = event.cached_tokens;
    if (event.last()) {
      ++job.endings;
      job.finish = event.finish;
      job.error = event.error;
      co_return;
    }
    if (job.leave_after && job.tokens.size() >= *job.leave_after) {
      job.left = true;
      co_return;
    }
  }
}

/// A reproducible source of choices for one seed.
class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(seed) {}
  uint32_t range(uint32_t low, uint32_t high) {
    return low + static_cast<uint32_t>(uniform_at(seed_, draws_++) * (high - low + 1));
  }
  bool chance(double probability) { return uniform_at(seed_, draws_++) < probability; }

 private:
  uint64_t seed_;
  uint64_t draws_ = 0;
};

/// Puts a store behind the host tier: slow, failing on some stages, and outliving the ring's generations.
void add_store(Dice& dice, sim::SimulatedRingOptions& ring, double failure_rate) {
  ring.head.scheduler.has_store = true;
  ring.head.scheduler.prefetch_policy = static_cast<sched::PrefetchPolicy>(dice.range(0, 2));
  ring.head.prefetch_timeout = 300ms;
  const auto shelf = std::make_shared<sim::StoreShelf>(failure_rate == 0 ? 1000 : dice.range(4, 400));
  const uint64_t seed = dice.range(0, 1u << 30);
  const StageId failing(dice.range(0, ring.stage_count));  // one past the last: none
  const async::Duration slowest = std::chrono::microseconds(dice.range(0, 3000));
  ring.make_store = [=, stages = ring.stage_count, page_size = ring.head.scheduler.page_size](async::Runtime& runtime,
                                                                                              StageId stage) {
    cache::StoreIdentity identity{"model", stage.value(), stage.value() + 1, "u64", page_size, 0};
    const sim::SimulatedModel model;
    const int32_t layers =
        model.layer_count * (static_cast<int32_t>(stage.value()) + 1) / static_cast<int32_t>(stages) -
        model.layer_count * static_cast<int32_t>(stage.value()) / static_cast<int32_t>(stages);
    identity.page_bytes = static_cast<size_t>(layers) * page_size * sizeof(uint64_t);
    const auto own = std::make_shared<Dice>(seed + stage.value());
    sim::SimulatedStoreOptions options;
    options.delay = [own, slowest](sim::StoreCall, size_t) { return slowest * own->range(0, 100) / 100; };
    options.fails = [own, failure_rate, is_failing = stage == failing](sim::StoreCall) {
      return is_failing && own->chance(failure_rate);
    };
    return sim::make_simulated_store(runtime, identity, shelf, options);
  };
}

sim::SimulatedRingOptions random_ring(Dice& dice) {
  sim::SimulatedRingOptions ring;
  ring.stage_count = dice.range(1, 4);
  ring.model.vocab_size = 50;
  for (uint32_t i = 0; i < ring.stage_count; ++i) {
    ring.costs.push_back({static_cast<double>(dice.range(10, 200)), static_cast<double>(dice.range(0, 10)), 0.01, 1.0});
  }
  sched::SchedulerOptions& scheduler = ring.head.scheduler;
  scheduler.page_size = 1u << dice.range(0, 3);
  scheduler.page_count = dice.range(64, 200) / scheduler.page_size;
  scheduler.max_running = dice.range(1, 8);
  scheduler.window = ring.stage_count + dice.range(0, 2);
  scheduler.chunked_prefill_size = dice.range(1, 32);
  scheduler.context_length = std::min(64u, scheduler.page_count * scheduler.page_size);
  scheduler.stage_count = ring.stage_count;
  scheduler.chunking = static_cast<sched::Chunking>(dice.range(0, 2));
  scheduler.chunk_smoothing = 0.25 * dice.range(1, 4);
  scheduler.policy = static_cast<sched::QueuePolicy>(dice.range(0, 3));
  scheduler.share_prefixes = dice.chance(0.8);
  if (scheduler.share_prefixes && dice.chance(0.6)) {
    scheduler.host_page_count = dice.range(1, 2 * scheduler.page_count);
    scheduler.write_policy = static_cast<cache::WritePolicy>(dice.range(0, 2));
    for (auto& cost : ring.costs) cost.per_copied_page_us = dice.range(0, 300);
    if (dice.chance(0.6)) add_store(dice, ring, 0.1 * dice.range(0, 4));
  }
  scheduler.new_token_ratio = 0.35 * dice.range(0, 2);
  if (dice.chance(0.5)) {
    ring.links.bytes_per_second = dice.range(1, 100) * 1e6;
    ring.links.latency = std::chrono::microseconds(dice.range(0, 300));
  }
  ring.head.audit = true;
  ring.head.max_queued = 64;
  ring.head.heartbeat = 1s;
  ring.head.watchdog = 100s;
  return ring;
}

std::vector<Job> random_jobs(Dice& dice) {
  std::vector<Job> jobs(dice.range(1, 12));
  int next_id = 0;
  const uint32_t last_arrival_us = dice.chance(0.5) ? 12'000 : 300'000;
  std::vector<TokenId> common(30);  // what many prompts begin with
  for (TokenId& token : common) token = static_cast<TokenId>(dice.range(0, 49));
  for (Job& job : jobs) {
    job.request.id = std::to_string(next_id++);
    if (dice.chance(0.6)) job.request.prompt.assign(common.begin(), common.begin() + dice.range(0, 30));
    if (dice.chance(0.1)) job.request.cache_salt = "other";
    for (uint32_t i = dice.range(1, 40 - static_cast<uint32_t>(job.request.prompt.size())); i > 0; --i)
      job.request.prompt.push_back(static_cast<TokenId>(dice.range(0, 49)));
    job.request.max_tokens = dice.range(1, 40);
    job.request.priority = static_cast<int32_t>(dice.range(0, 2));
    if (dice.chance(0.3)) job.request.sampling.stop_token_ids = {7, 11};
    if (dice.chance(0.3)) job.leave_after = dice.range(1, 10);
    job.arrival = kProfileEnd + std::chrono::microseconds(dice.range(2000, last_arrival_us));
  }
  return jobs;
}

/// What `job` must yield if nothing goes wrong, from the model alone.
std::vector<TokenId> expected_tokens(const Job& job, const sim::SimulatedRingOptions& ring) {
  const size_t room = ring.head.scheduler.context_length - job.request.prompt.size();
  auto tokens = ring.model.generate(job.request.prompt, std::min<size_t>(job.request.max_tokens, room));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto& stops = job.request.sampling.stop_token_ids;
    if (std::find(stops.begin(), stops.end(), tokens[i]) != stops.end()) tokens.resize(i + 1);
  }
  return tokens;
}

struct Outcome {
  uint64_t preemptions = 0;
  uint64_t host_hits = 0;
  uint64_t fetched = 0;
  uint64_t trace_hash = 0;
  uint64_t steps = 0;
};

Outcome run_world(uint64_t seed, const sim::SimulatedRingOptions& options, std::vector<Job>& jobs) {
  async::VirtualWorld world(seed);
  sim::SimulatedRing ring(world, options);
  async::Runtime& client_thread = world.add_thread();
  async::TaskGroup clients(client_thread);
  for (Job& job : jobs) clients.spawn("client", act_as_client(client_thread, ring.head(), job));
  world.run(async::TimePoint(20s));
  REQUIRE(clients.size() == 0);
  const sched::EngineStatus status = ring.head().status();
  REQUIRE(status.running == 0);
  REQUIRE(status.waiting == 0);
  REQUIRE(status.free_pages == status.total_pages);
  ring.stop();
  world.run();
  REQUIRE(ring.stopped());
  return {status.preemptions, status.cache.host_hit_pages, status.cache.fetched_pages, world.trace_hash(),
          world.step_count()};
}

}  // namespace

TEST_CASE("random rings give every request the model's own tokens, once, and leak nothing") {
  uint64_t preemptions = 0;
  uint64_t cached_tokens = 0;
  uint64_t host_hits = 0;
  uint64_t fetched = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    const auto options = random_ring(dice);
    auto jobs = random_jobs(dice);
    const Outcome outcome = run_world(seed, options, jobs);
    preemptions += outcome.preemptions;
    host_hits += outcome.host_hits;
    fetched += outcome.fetched;
    for (const Job& job : jobs) {
      cached_tokens += job.cached_tokens;
      const auto wanted = expected_tokens(job, options);
      if (job.refused) {
        REQUIRE(job.request.prompt.size() >= options.head.scheduler.context_length);
      } else if (job.left) {
        REQUIRE(std::equal(job.tokens.begin(), job.tokens.end(), wanted.begin()));
      } else {
        REQUIRE(job.endings == 1);
        REQUIRE_FALSE(job.error.has_value());
        REQUIRE(job.tokens == wanted);
      }
    }
  }
  REQUIRE(cached_tokens > 10000);
  REQUIRE(host_hits > 500);
  REQUIRE(fetched > 20);
  REQUIRE(preemptions > 100);  // else the pools were too large to test anything
}

namespace {

asio::awaitable<void> flush(async::Runtime& runtime, sched::Engine& engine, async::Duration at,
                            std::optional<Result<void>>& answer) {
  co_await async::sleep_for(runtime, at);
  answer = co_await engine.flush_cache(runtime, 0s);
}

}  // namespace

TEST_CASE("what was flushed comes back from the store, and a flush is refused while requests run") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = random_ring(dice);
    sched::SchedulerOptions& scheduler = options.head.scheduler;
    scheduler.share_prefixes = true;
    scheduler.host_page_count = 4 * scheduler.page_count;
    scheduler.write_policy = cache::WritePolicy::kWriteThrough;
    add_store(dice, options, 0.0);
    scheduler.prefetch_policy = sched::PrefetchPolicy::kWaitComplete;
    std::vector<Job> jobs(2);
    for (size_t i = 0; i < 2; ++i) {
      jobs[i].request.id = std::to_string(i);
      jobs[i].request.prompt.assign(40, 1);
      jobs[i].request.max_tokens = 5;
      jobs[i].arrival = i == 0 ? async::Duration(2s) : async::Duration(10s);
    }
    async::VirtualWorld world(seed);
    sim::SimulatedRing ring(world, options);
    async::Runtime& client_thread = world.add_thread();
    async::TaskGroup clients(client_thread);
    for (Job& job : jobs) clients.spawn("client", act_as_client(client_thread, ring.head(), job));
    std::optional<Result<void>> refused;
    std::optional<Result<void>> flushed;
    clients.spawn("early flush", flush(client_thread, ring.head(), 2s + 10us, refused));
    clients.spawn("late flush", flush(client_thread, ring.head(), 9s, flushed));
    world.run(async::TimePoint(20s));
    REQUIRE(clients.size() == 0);
    REQUIRE(refused->has_error());
    REQUIRE(refused->error().code == ErrorCode::kConflict);
    REQUIRE_FALSE(flushed->has_error());
    REQUIRE(jobs[0].cached_tokens == 0);
    REQUIRE(jobs[1].cached_tokens == 39 / scheduler.page_size * scheduler.page_size);
    REQUIRE(ring.head().status().cache.fetched_pages == 39 / scheduler.page_size);
    for (const Job& job : jobs) REQUIRE(job.tokens == expected_tokens(job, options));
    ring.stop();
    world.run();
  }
}

TEST_CASE("one seed gives one history") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Dice dice(seed);
    const auto options = random_ring(dice);
    auto jobs = random_jobs(dice);
    auto again = jobs;
    Dice same_dice(seed);
    const auto same_options = random_ring(same_dice);  // a store remembers what it was given
    const Outcome first = run_world(seed, options, jobs);
    const Outcome second = run_world(seed, same_options, again);
    REQUIRE(first.trace_hash == second.trace_hash);
    REQUIRE(first.steps == second.steps);
    const Outcome other = run_world(seed + 1000, options, again);
    REQUIRE(other.trace_hash != first.trace_hash);
  }
}

TEST_CASE("a stage that fails ends every request with one clear error, wherever it stands") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = random_ring(dice);
    auto jobs = random_jobs(dice);
    const StageId victim(dice.range(0, options.stage_count - 1));
    int runs_left = static_cast<int>(dice.range(0, 20));
    async::VirtualWorld world(seed);
    options.fault = [&](StageId stage) {
      const bool timed = world.now() > async::TimePoint(kProfileEnd);
      if (timed && stage == victim && runs_left-- <= 0) throw std::runtime_error("device lost");
    };
    sim::SimulatedRing ring(world, options);
    async::Runtime& client_thread = world.add_thread();
    async::TaskGroup clients(client_thread);
    for (Job& job : jobs) clients.spawn("client", act_as_client(client_thread, ring.head(), job));
    world.run(async::TimePoint(20s));
    REQUIRE(clients.size() == 0);
    const sched::EngineStatus status = ring.head().status();
    REQUIRE(status.free_pages == status.total_pages);
    for (const Job& job : jobs) {
      if (job.left || job.refused) continue;
      REQUIRE(job.endings == 1);
      REQUIRE(job.error.has_value() != job.finish.has_value());
      if (job.error) REQUIRE(job.error->message.find("device lost") != std::string::npos);
    }
    ring.stop();
    world.run();
    REQUIRE(ring.stopped());
  }
}

TEST_CASE("after a break the ring forms again by itself, and the queue survives") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = random_ring(dice);
    auto jobs = random_jobs(dice);
    const StageId victim(dice.range(0, options.stage_count - 1));
    int runs_left = static_cast<int>(dice.range(0, 20));
    async::VirtualWorld world(seed);
    options.fault = [&](StageId stage) {
      const bool early = world.now() > async::TimePoint(kProfileEnd) && world.now() < async::TimePoint(5s);
      if (early && stage == victim && runs_left-- == 0) throw std::runtime_error("device lost");
    };
    sim::SimulatedRing ring(world, options);
    async::Runtime& client_thread = world.add_thread();
    async::TaskGroup clients(client_thread);
    for (Job& job : jobs) clients.spawn("client", act_as_client(client_thread, ring.head(), job));
    Job late;
    late.request.id = "late";
    late.request.prompt = {1, 2, 3};
    late.request.max_tokens = 20;
    late.arrival = 10s;
    clients.spawn("late client", act_as_client(client_thread, ring.head(), late));
    world.run(async::TimePoint(20s));
    REQUIRE(clients.size() == 0);
    REQUIRE(ring.head().status().ready);
    REQUIRE(late.tokens == expected_tokens(late, options));
    for (const Job& job : jobs) {
      if (job.left || job.refused) continue;
      REQUIRE(job.endings == 1);
      if (!job.error) REQUIRE(job.tokens == expected_tokens(job, options));
    }
    const sched::EngineStatus status = ring.head().status();
    REQUIRE(status.free_pages == status.total_pages);
    ring.stop();
    world.run();
    REQUIRE(ring.stopped());
  }
}

TEST_CASE("a lost link ends what runs with one clear error, and the ring forms again") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = random_ring(dice);
    auto jobs = random_jobs(dice);
    int messages_left = static_cast<int>(dice.range(0, 60));
    async::VirtualWorld world(seed);
    options.links.latency = std::chrono::microseconds(dice.range(1, 300));
    options.links.fault = [&]() -> std::optional<std::string> {
      if (world.now() < async::TimePoint(kProfileEnd) || messages_left-- != 0) return std::nullopt;
      return "cable pulled";
    };
    sim::SimulatedRing ring(world, options);
    async::Runtime& client_thread = world.add_thread();
    async::TaskGroup clients(client_thread);
    for (Job& job : jobs) clients.spawn("client", act_as_client(client_thread, ring.head(), job));
    world.run(async::TimePoint(20s));
    REQUIRE(clients.size() == 0);
    const sched::EngineStatus status = ring.head().status();
    REQUIRE(status.ready);
    REQUIRE(status.free_pages == status.total_pages);
    for (const Job& job : jobs) {
      if (job.left || job.refused) continue;
      REQUIRE(job.endings == 1);
      if (job.error) REQUIRE(job.error->message.find("cable pulled") != std::string::npos);
      else REQUIRE(job.tokens == expected_tokens(job, options));
    }
    ring.stop();
    world.run();
    REQUIRE(ring.stopped());
  }
}

TEST_CASE("pauses of every kind change nobody's tokens") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    const auto options = random_ring(dice);
    auto jobs = random_jobs(dice);
    const auto mode = static_cast<sched::PauseMode>(dice.range(0, 2));
    async::VirtualWorld world(seed);
    sim::SimulatedRing ring(world, options);
    async::Runtime& client_thread = world.add_thread();
    async::TaskGroup clients(client_thread);
    for (Job& job : jobs) clients.spawn("client", act_as_client(client_thread, ring.head(), job));
    world.run(async::TimePoint(kProfileEnd + std::chrono::microseconds(dice.range(2000, 20000))));
    ring.head().pause(mode);
    world.run(async::TimePoint(5s));
    if (mode == sched::PauseMode::kRetract) {
      REQUIRE(ring.head().status().free_pages == ring.head().status().total_pages);
    }
    ring.head().resume();
    world.run(async::TimePoint(20s));
    REQUIRE(clients.size() == 0);
    for (const Job& job : jobs) {
      if (job.left || job.refused) continue;
      REQUIRE(job.endings == 1);
      const bool aborted = job.finish == sched::FinishReason::kAbort;
      REQUIRE((!aborted || mode == sched::PauseMode::kAbort));
      if (!aborted) REQUIRE(job.tokens == expected_tokens(job, options));
    }
    ring.stop();
    world.run();
    REQUIRE(ring.stopped());
  }
}

TEST_CASE("a request past its time limit ends with an error that names the limit") {
  Dice dice(5);
  auto options = random_ring(dice);
  options.costs = {{.fixed_us = 10000}};
  options.head.scheduler.max_running = 1;
  options.head.scheduler.chunking = sched::Chunking::kFixed;
  options.head.queue_timeout = 500ms;
  options.head.run_timeout = 800ms;
  std::vector<Job> jobs(3);
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].request.id = std::to_string(i);
    jobs[i].request.prompt = {1, 2, 3};
    jobs[i].request.max_tokens = i == 0 ? 1000 : 5;
    jobs[i].arrival = 1s + i * 1ms;
  }
  options.head.scheduler.page_size = 8;
  options.head.scheduler.page_count = 1000;
  options.head.scheduler.context_length = 4000;
  async::VirtualWorld world(5);
  sim::SimulatedRing ring(world, options);
  async::Runtime& client_thread = world.add_thread();
  async::TaskGroup clients(client_thread);
  for (Job& job : jobs) clients.spawn("client", act_as_client(client_thread, ring.head(), job));
  world.run(async::TimePoint(20s));
  REQUIRE(clients.size() == 0);
  REQUIRE(jobs[0].error->message.find("--run-timeout") != std::string::npos);
  REQUIRE(jobs[1].error->code == ErrorCode::kTimeout);
  REQUIRE(jobs[1].error->message.find("--queue-timeout") != std::string::npos);
  REQUIRE(ring.head().status().free_pages == 1000);
  ring.stop();
  world.run();
}

TEST_CASE("an idle ring is ready after its first empty plan and keeps its heartbeat") {
  Dice dice(1);
  auto options = random_ring(dice);
  options.head.scheduler.chunking = sched::Chunking::kFixed;
  async::VirtualWorld world(1);
  sim::SimulatedRing ring(world, options);
  REQUIRE_FALSE(ring.head().status().ready);
  world.run(async::TimePoint(1ms));
  REQUIRE(ring.head().status().ready);
  const uint64_t before = world.step_count();
  world.run(async::TimePoint(10s));
  REQUIRE(world.step_count() > before);
  REQUIRE(ring.head().status().ready);
  ring.stop();
  world.run();
  REQUIRE(ring.stopped());
}

TEST_CASE("a stage that never answers is named by the watchdog") {
  Dice dice(3);
  auto options = random_ring(dice);
  options.head.scheduler.chunking = sched::Chunking::kFixed;  // else the profile would not end
  for (auto& cost : options.costs) cost.fixed_us = 1e12;
  options.head.queue_timeout = 300s;  // the stage never ends, so no ring forms for those who have not begun
  std::vector<Job> jobs = random_jobs(dice);
  for (Job& job : jobs) job.leave_after.reset();
  async::VirtualWorld world(3);
  sim::SimulatedRing ring(world, options);
  async::Runtime& client_thread = world.add_thread();
  async::TaskGroup clients(client_thread);
  for (Job& job : jobs) clients.spawn("client", act_as_client(client_thread, ring.head(), job));
  world.run(async::TimePoint(1000s));
  REQUIRE(clients.size() == 0);
  int ran_count = 0;
  for (const Job& job : jobs) {
    if (job.refused) continue;
    const bool ran = job.error->message.find("has been under way for 100 s") != std::string::npos;
    ran_count += ran ? 1 : 0;
    REQUIRE((ran || job.error->code == ErrorCode::kTimeout));
  }
  REQUIRE(ran_count > 0);
  ring.stop();
  world.run();
  REQUIRE(ring.stopped());
}
