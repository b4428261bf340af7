#pragma once

#include "sched/head/engine_status.h"
#include "sched/router/ring_router.h"
#include "sim/siege.h"

/// Several rings behind one router, and what is done to them.
namespace millrace::test {

/// Some rings in virtual time behind a router, and the clients of some jobs.
class SeveralRings {
 public:
  SeveralRings(uint64_t seed, sched::LoadBalanceMethod method) : world_(seed), method_(method) {}

  /// Lets the rings share experts, before start().
  void share_experts(uint32_t ring_count, uint32_t rank_count, uint64_t lookahead,
                     const sim::VirtualCollectiveOptions& exchange) {
    experts_.emplace(ring_count, rank_count, lookahead, exchange);
  }
  /// Puts the rings that share experts into several processes, after share_experts().
  void divide(const sim::SimulatedLinkOptions& links) { experts_->divide(world_, links); }
  /// Breaks the connection between the first ring's process and another one.
  void cut_connection(uint32_t ring, const std::string& reason) { experts_->connection(ring).break_off(reason); }
  /// Called once; `jobs` outlive the world's runs.
  void start(std::vector<sim::SimulatedRingOptions> rings, std::vector<Job>& jobs) {
    std::vector<sched::Engine*> heads;
    for (sim::SimulatedRingOptions& ring : rings) {
      if (experts_) ring.experts = &*experts_;
      heads.push_back(&rings_.emplace_back(std::make_unique<sim::SimulatedRing>(world_, ring))->head());
    }
    const sim::SimulatedRingOptions& first = rings.front();
    async::Runtime& router_thread = world_.add_thread();
    router_.emplace(router_thread, heads,
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
  [[nodiscard]] size_t size() const { return rings_.size(); }
  [[nodiscard]] sched::Head& head(size_t ring) { return rings_[ring]->head(); }
  /// Returns the steps of a ring that shares experts.
  [[nodiscard]] sched::StepCounts steps(size_t ring) {
    return head(ring).ring_stats()->snapshot(world_.now().time_since_epoch().count()).steps;
  }
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
    world_.run(world_.now() + 10s);
    if (experts_) experts_->stop();
    world_.run();
    for (const auto& ring : rings_) REQUIRE(ring->stopped());
    REQUIRE(router_tasks_->size() == 0);
    return {world_.trace_hash(), world_.step_count(), world_.random()};
  }

 private:
  async::VirtualWorld world_;
  const sched::LoadBalanceMethod method_;
  std::optional<sim::SimulatedExperts> experts_;
  std::vector<std::unique_ptr<sim::SimulatedRing>> rings_;
  std::optional<sched::RingRouter> router_;
  std::optional<async::TaskGroup> router_tasks_;
  async::Runtime* client_thread_ = nullptr;
  std::optional<async::TaskGroup> clients_;
};

/// A ring that runs few requests at a time, so that others wait.
inline sim::SimulatedRingOptions narrow_ring(Dice& dice) {
  auto options = cramped_ring(dice);
  options.make_store = {};
  options.head.scheduler.has_store = false;
  options.head.scheduler.max_running = dice.range(1, 3);
  options.model.faulty_one_in = 0;
  return options;
}

inline std::vector<Job> spread_jobs(Dice& dice, std::string_view prefix, int rounds = 3) {
  std::vector<Job> jobs;
  for (int round = 0; round < rounds; ++round) {
    for (Job& job : greedy_jobs(dice)) jobs.push_back(std::move(job));
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].request.id = std::string(prefix) + std::to_string(i);
    jobs[i].arrival += std::chrono::milliseconds(dice.range(0, 500));
  }
  return jobs;
}

/// Drains the first ring, restarts it once it is empty, and returns when it serves again.
inline asio::awaitable<void> drain_and_restart(async::Runtime& runtime, sched::RingRouter& router, async::Duration at,
                                               bool& done) {
  co_await async::sleep_for(runtime, at);
  REQUIRE_FALSE(router.drain(0).has_error());
  if (router.size() == 2) REQUIRE(router.drain(1).error().code == ErrorCode::kConflict);
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

}  // namespace millrace::test
