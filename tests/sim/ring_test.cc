#include <catch2/catch.hpp>
#include <set>

#include "base/random.h"
#include "sim/simulated_ring.h"
#include "support/effort.h"

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
  scheduler.policy = static_cast<sched::QueuePolicy>(dice.range(0, 2));
  scheduler.new_token_ratio = 0.35 * dice.range(0, 2);
  if (dice.chance(0.5)) {
    ring.links.bytes_per_second = dice.range(1, 100) * 1e6;
    ring.links.latency = std::chrono::microseconds(dice.range(0, 300));
  }
  ring.head.max_queued = 64;
  ring.head.heartbeat = 1s;
  ring.head.watchdog = 100s;
  return ring;
}

std::vector<Job> random_jobs(Dice& dice) {
  std::vector<Job> jobs(dice.range(1, 12));
  int next_id = 0;
  for (Job& job : jobs) {
    job.request.id = std::to_string(next_id++);
    for (uint32_t i = dice.range(1, 40); i > 0; --i)
      job.request.prompt.push_back(static_cast<TokenId>(dice.range(0, 49)));
    job.request.max_tokens = dice.range(1, 40);
    job.request.priority = static_cast<int32_t>(dice.range(0, 2));
    if (dice.chance(0.3)) job.request.sampling.stop_token_ids = {7, 11};
    if (dice.chance(0.3)) job.leave_after = dice.range(1, 10);
    job.arrival = kProfileEnd + std::chrono::microseconds(dice.range(2000, 12000));
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

/// A ring in virtual time and the clients of some jobs.
class World {
 public:
  explicit World(uint64_t seed) : world_(seed) {}
  [[nodiscard]] async::TimePoint now() const { return world_.now(); }
  [[nodiscard]] sched::Head& head() { return ring_->head(); }

  /// Called once; `jobs` outlive the world's runs.
  void start(const sim::SimulatedRingOptions& options, std::vector<Job>& jobs) {
    ring_.emplace(world_, options);
    client_thread_ = &world_.add_thread();
    clients_.emplace(*client_thread_);
    for (Job& job : jobs) clients_->spawn("client", act_as_client(*client_thread_, head(), job));
  }
  void run_until(async::Duration at) { world_.run(async::TimePoint(at)); }
  /// Runs until every client must have its answer, and nothing may be left of the requests.
  void run_to_end(async::Duration end = 20s) {
    run_until(end);
    REQUIRE(clients_->size() == 0);
    const sched::EngineStatus status = head().status();
    REQUIRE(status.running == 0);
    REQUIRE(status.waiting == 0);
    REQUIRE(status.free_pages == status.total_pages);
  }
  void stop() {
    ring_->stop();
    world_.run();
    REQUIRE(ring_->stopped());
  }
  [[nodiscard]] uint64_t trace_hash() const { return world_.trace_hash(); }
  [[nodiscard]] uint64_t step_count() const { return world_.step_count(); }

 private:
  async::VirtualWorld world_;
  std::optional<sim::SimulatedRing> ring_;
  async::Runtime* client_thread_ = nullptr;
  std::optional<async::TaskGroup> clients_;
};

struct Outcome {
  uint64_t preemptions = 0;
  uint64_t trace_hash = 0;
  uint64_t steps = 0;
};

Outcome run_world(uint64_t seed, const sim::SimulatedRingOptions& options, std::vector<Job>& jobs) {
  World world(seed);
  world.start(options, jobs);
  world.run_to_end();
  const uint64_t preemptions = world.head().status().preemptions;
  world.stop();
  return {preemptions, world.trace_hash(), world.step_count()};
}

/// The jobs that were answered to the end: neither refused nor left by their client.
std::vector<Job> ended(const std::vector<Job>& jobs) {
  std::vector<Job> chosen;
  for (const Job& job : jobs) {
    if (job.left || job.refused) continue;
    REQUIRE(job.endings == 1);
    REQUIRE(job.error.has_value() != job.finish.has_value());
    chosen.push_back(job);
  }
  return chosen;
}

}  // namespace

TEST_CASE("random rings give every request the model's own tokens, once, and leak nothing") {
  uint64_t preemptions = 0;
  const uint64_t seeds = test::repetitions(1500);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    const auto options = random_ring(dice);
    auto jobs = random_jobs(dice);
    preemptions += run_world(seed, options, jobs).preemptions;
    for (const Job& job : jobs) {
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
  REQUIRE(preemptions > seeds / 15);  // else the pools were too large to test anything
}

TEST_CASE("one seed gives one history") {
  for (uint64_t seed = 0; seed < test::repetitions(20); ++seed) {
    Dice dice(seed);
    const auto options = random_ring(dice);
    auto jobs = random_jobs(dice);
    auto again = jobs;
    const Outcome first = run_world(seed, options, jobs);
    const Outcome second = run_world(seed, options, again);
    REQUIRE(first.trace_hash == second.trace_hash);
    REQUIRE(first.steps == second.steps);
    const Outcome other = run_world(seed + 1000, options, again);
    REQUIRE(other.trace_hash != first.trace_hash);
  }
}

TEST_CASE("a stage that fails ends every request with one clear error, wherever it stands") {
  for (uint64_t seed = 0; seed < test::repetitions(300); ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = random_ring(dice);
    auto jobs = random_jobs(dice);
    const StageId victim(dice.range(0, options.stage_count - 1));
    int runs_left = static_cast<int>(dice.range(0, 20));
    World world(seed);
    options.fault = [&](StageId stage) {
      const bool timed = world.now() > async::TimePoint(kProfileEnd);
      if (timed && stage == victim && runs_left-- <= 0) throw std::runtime_error("device lost");
    };
    world.start(options, jobs);
    world.run_to_end();
    for (const Job& job : ended(jobs)) {
      if (job.error) REQUIRE(job.error->message.find("device lost") != std::string::npos);
    }
    world.stop();
  }
}

TEST_CASE("after a break the ring forms again by itself, and the queue survives") {
  for (uint64_t seed = 0; seed < test::repetitions(300); ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = random_ring(dice);
    auto jobs = random_jobs(dice);
    Job& late = jobs.emplace_back();
    late.request.id = "late";
    late.request.prompt = {1, 2, 3};
    late.request.max_tokens = 20;
    late.arrival = 10s;
    const StageId victim(dice.range(0, options.stage_count - 1));
    int runs_left = static_cast<int>(dice.range(0, 20));
    World world(seed);
    options.fault = [&](StageId stage) {
      const bool early = world.now() > async::TimePoint(kProfileEnd) && world.now() < async::TimePoint(5s);
      if (early && stage == victim && runs_left-- == 0) throw std::runtime_error("device lost");
    };
    world.start(options, jobs);
    world.run_to_end();
    REQUIRE(world.head().status().ready);
    REQUIRE(jobs.back().tokens == expected_tokens(jobs.back(), options));
    for (const Job& job : ended(jobs)) {
      if (!job.error) REQUIRE(job.tokens == expected_tokens(job, options));
    }
    world.stop();
  }
}

TEST_CASE("a lost link ends what runs with one clear error, and the ring forms again") {
  for (uint64_t seed = 0; seed < test::repetitions(300); ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    auto options = random_ring(dice);
    auto jobs = random_jobs(dice);
    int messages_left = static_cast<int>(dice.range(0, 60));
    World world(seed);
    options.links.latency = std::chrono::microseconds(dice.range(1, 300));
    options.links.fault = [&]() -> std::optional<std::string> {
      if (world.now() < async::TimePoint(kProfileEnd) || messages_left-- != 0) return std::nullopt;
      return "cable pulled";
    };
    world.start(options, jobs);
    world.run_to_end();
    REQUIRE(world.head().status().ready);
    for (const Job& job : ended(jobs)) {
      if (job.error) REQUIRE(job.error->message.find("cable pulled") != std::string::npos);
      else REQUIRE(job.tokens == expected_tokens(job, options));
    }
    world.stop();
  }
}

TEST_CASE("pauses of every kind change nobody's tokens") {
  for (uint64_t seed = 0; seed < test::repetitions(300); ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    const auto options = random_ring(dice);
    auto jobs = random_jobs(dice);
    const auto mode = static_cast<sched::PauseMode>(dice.range(0, 2));
    World world(seed);
    world.start(options, jobs);
    world.run_until(kProfileEnd + std::chrono::microseconds(dice.range(2000, 20000)));
    world.head().pause(mode);
    world.run_until(5s);
    if (mode == sched::PauseMode::kRetract) {
      REQUIRE(world.head().status().free_pages == world.head().status().total_pages);
    }
    world.head().resume();
    world.run_to_end();
    for (const Job& job : ended(jobs)) {
      const bool aborted = job.finish == sched::FinishReason::kAbort;
      REQUIRE((!aborted || mode == sched::PauseMode::kAbort));
      if (!aborted) REQUIRE(job.tokens == expected_tokens(job, options));
    }
    world.stop();
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
  World world(5);
  world.start(options, jobs);
  world.run_to_end();
  REQUIRE(jobs[0].error->message.find("--run-timeout") != std::string::npos);
  REQUIRE(jobs[1].error->code == ErrorCode::kTimeout);
  REQUIRE(jobs[1].error->message.find("--queue-timeout") != std::string::npos);
  world.stop();
}

TEST_CASE("an idle ring is ready after its first empty plan and keeps its heartbeat") {
  Dice dice(1);
  auto options = random_ring(dice);
  options.head.scheduler.chunking = sched::Chunking::kFixed;
  std::vector<Job> none;
  World world(1);
  world.start(options, none);
  REQUIRE_FALSE(world.head().status().ready);
  world.run_until(1ms);
  REQUIRE(world.head().status().ready);
  const uint64_t before = world.step_count();
  world.run_until(10s);
  REQUIRE(world.step_count() > before);
  REQUIRE(world.head().status().ready);
  world.stop();
}

TEST_CASE("a stage that never answers is named by the watchdog") {
  Dice dice(3);
  auto options = random_ring(dice);
  options.head.scheduler.chunking = sched::Chunking::kFixed;  // else the profile would not end
  for (auto& cost : options.costs) cost.fixed_us = 1e12;
  std::vector<Job> jobs = random_jobs(dice);
  for (Job& job : jobs) job.leave_after.reset();
  World world(3);
  world.start(options, jobs);
  world.run_to_end(200s);
  REQUIRE_FALSE(world.head().status().ready);
  for (const Job& job : jobs) {
    if (job.refused) continue;
    REQUIRE(job.error->message.find("has been under way for 100 s") != std::string::npos);
  }
  world.stop();
}
