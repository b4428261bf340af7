#include <catch2/catch.hpp>

#include "sched/head/engine_status.h"
#include "sched/router/ring_router.h"
#include "sim/siege.h"
#include "support/effort.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

namespace {

/// Two rings in virtual time behind a router, and the clients of some jobs.
class TwoRings {
 public:
  TwoRings(uint64_t seed, sched::LoadBalanceMethod method) : world_(seed), method_(method) {}

  /// Called once; `jobs` outlive the world's runs.
  void start(const sim::SimulatedRingOptions& first, const sim::SimulatedRingOptions& second, std::vector<Job>& jobs) {
    rings_.emplace_back(std::make_unique<sim::SimulatedRing>(world_, first));
    rings_.emplace_back(std::make_unique<sim::SimulatedRing>(world_, second));
    async::Runtime& router_thread = world_.add_thread();
    router_.emplace(router_thread, std::vector<sched::Engine*>{&rings_[0]->head(), &rings_[1]->head()},
                    sched::RouterOptions{.method = method_,
                                         .max_running = first.head.scheduler.max_running,
                                         .page_size = first.head.scheduler.page_size,
                                         .share_prefixes = first.head.scheduler.share_prefixes,
                                         .queue_timeout = first.head.queue_timeout});
    router_tasks_.emplace(router_thread);
    router_tasks_->spawn("router", router_->run());
    client_thread_ = &world_.add_thread();
    clients_.emplace(*client_thread_);
    for (Job& job : jobs) clients_->spawn("client", act_as_client(*client_thread_, *router_, job));
  }
  [[nodiscard]] async::TimePoint now() const { return world_.now(); }
  [[nodiscard]] sched::RingRouter& router() { return *router_; }
  [[nodiscard]] async::Runtime& client_thread() { return *client_thread_; }
  void spawn(asio::awaitable<void> task) { clients_->spawn("task", std::move(task)); }
  void run_until(async::Duration at) { world_.run(async::TimePoint(at)); }
  void run_to_end(const std::vector<Job>& jobs) {
    run_until(20s);
    REQUIRE(clients_->size() == 0);
    for (const Job& job : jobs) REQUIRE_FALSE(router_->abort(job.request.id));
    for (size_t ring = 0; ring < rings_.size(); ++ring) {
      const sched::EngineStatus status = rings_[ring]->head().status();
      REQUIRE(status.running + status.waiting == 0);
      REQUIRE(status.free_pages == status.total_pages);
    }
  }
  History stop() {
    router_->stop();
    for (const auto& ring : rings_) ring->stop();
    world_.run();
    for (const auto& ring : rings_) REQUIRE(ring->stopped());
    REQUIRE(router_tasks_->size() == 0);
    return {world_.trace_hash(), world_.step_count(), world_.random()};
  }

 private:
  async::VirtualWorld world_;
  const sched::LoadBalanceMethod method_;
  std::vector<std::unique_ptr<sim::SimulatedRing>> rings_;
  std::optional<sched::RingRouter> router_;
  std::optional<async::TaskGroup> router_tasks_;
  async::Runtime* client_thread_ = nullptr;
  std::optional<async::TaskGroup> clients_;
};

/// A ring that runs few requests at a time, so that others wait.
sim::SimulatedRingOptions narrow_ring(Dice& dice) {
  auto options = cramped_ring(dice);
  options.make_store = {};
  options.head.scheduler.has_store = false;
  options.head.scheduler.max_running = dice.range(1, 3);
  options.model.faulty_one_in = 0;
  return options;
}

std::vector<Job> spread_jobs(Dice& dice, std::string_view prefix) {
  std::vector<Job> jobs;
  for (int round = 0; round < 3; ++round) {
    for (Job& job : greedy_jobs(dice)) jobs.push_back(std::move(job));
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].request.id = std::string(prefix) + std::to_string(i);
    jobs[i].arrival += std::chrono::milliseconds(dice.range(0, 500));
  }
  return jobs;
}

struct Losses {
  uint64_t moved = 0;
  uint64_t broken = 0;  ///< requests that ran when their ring broke
  uint64_t breaks = 0;
};

/// Runs jobs on two rings of which the first breaks. Nobody is refused, and only what ran there may fail.
History break_one_ring(uint64_t seed, Losses& losses) {
  Dice dice(seed);
  const auto intact = narrow_ring(dice);
  auto breaking = intact;
  auto jobs = spread_jobs(dice, "");
  TwoRings world(seed, static_cast<sched::LoadBalanceMethod>(dice.range(0, 2)));
  Saboteur saboteur(dice, breaking, [&world] {
    return world.now() > async::TimePoint(kProfileEnd) && world.now() < async::TimePoint(5s);
  });
  world.start(breaking, intact, jobs);
  world.run_to_end(jobs);
  const Perils perils{.breaks = Saboteur::errors()};
  for (const Job& job : jobs) {
    if (job.refused) REQUIRE(job.error->code == ErrorCode::kInvalidArgument);
    require_right_end(job, intact, perils);
    losses.broken += job.error && job.error->code == ErrorCode::kUnavailable ? 1 : 0;
  }
  REQUIRE(world.router().status().ready);
  REQUIRE(world.router().report(1).moved == 0);
  losses.moved += world.router().report(0).moved;
  for (const uint64_t done : saboteur.done()) losses.breaks += done;
  return world.stop();
}

/// Drains the first ring, restarts it once it is empty, and returns when it serves again.
asio::awaitable<void> drain_and_restart(async::Runtime& runtime, sched::RingRouter& router, async::Duration at,
                                        bool& done) {
  co_await async::sleep_for(runtime, at);
  REQUIRE_FALSE(router.drain(0).has_error());
  REQUIRE(router.drain(1).error().code == ErrorCode::kConflict);
  for (;;) {
    const sched::RingReport report = router.report(0);
    REQUIRE(report.is_draining);
    if (report.status.running + report.status.waiting == 0) break;
    co_await async::sleep_for(runtime, 10ms);
  }
  REQUIRE(router.restart(0));
  while (!router.report(0).fault.empty()) co_await async::sleep_for(runtime, 10ms);
  REQUIRE_FALSE(router.report(0).is_draining);
  done = true;
}

}  // namespace

TEST_CASE("a ring that breaks fails only what it runs") {
  Losses losses;
  const uint64_t seeds = test::repetitions(150);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    (void)break_one_ring(seed, losses);
  }
  REQUIRE(losses.breaks > seeds / 2);
  REQUIRE(losses.moved > seeds);
  REQUIRE(losses.broken > seeds / 2);
}

TEST_CASE("two rings have one history per seed") {
  Losses losses;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    INFO("seed " << seed);
    const History first = break_one_ring(seed, losses);
    REQUIRE(first == break_one_ring(seed, losses));
  }
}

TEST_CASE("a ring is drained and restarted while the other serves") {
  uint64_t moved = 0;
  const uint64_t seeds = test::repetitions(100);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Dice dice(seed);
    const auto options = narrow_ring(dice);
    auto jobs = spread_jobs(dice, "");
    TwoRings world(seed, static_cast<sched::LoadBalanceMethod>(dice.range(0, 2)));
    world.start(options, options, jobs);
    bool done = false;
    const async::Duration at = kProfileEnd + std::chrono::milliseconds(dice.range(5, 400));
    world.spawn(drain_and_restart(world.client_thread(), world.router(), at, done));
    world.run_to_end(jobs);
    REQUIRE(done);
    for (const Job& job : jobs) {
      if (job.refused) REQUIRE(job.error->code == ErrorCode::kInvalidArgument);
      require_right_end(job, options);
    }
    moved += world.router().report(0).moved;
    (void)world.stop();
  }
  REQUIRE(moved > seeds / 4);
}
