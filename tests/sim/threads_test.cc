// The production loops on threads of their own, as in a server. Virtual time runs them on one: here sanitizers see what
// orders the accesses of a head, its stages and its clients.

#include <atomic>
#include <thread>

#include "async/real_runtime.h"
#include "sim/jobs.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

namespace {

/// A ring of one process with a thread for the head and one for each stage.
class ThreadedRing {
 public:
  ThreadedRing(const sim::SimulatedRingOptions& options, const std::function<void()>& fault) {
    const sched::SchedulerOptions& scheduler = options.head.scheduler;
    sched::RingConfig shape{.stage_count = options.stage_count,
                            .window = scheduler.window,
                            .watchdog = options.head.watchdog,
                            .make_collectives = {},
                            .make_expert_exchange = {}};
    shape.bounds = {.slot_count = scheduler.max_running,
                    .page_size = scheduler.page_size,
                    .page_count = scheduler.page_count,
                    .max_batch_tokens = sched::max_plan_tokens(scheduler),
                    .vocab_size = options.model.vocab_size,
                    .sampling_vocab = options.model.vocab_size};
    std::vector<async::Runtime*> runtimes;
    std::vector<sched::LocalStages::RunnerFactory> runners;
    for (uint32_t i = 0; i < options.stage_count; ++i) {
      threads_.push_back(std::make_unique<async::IoThread>("stage " + std::to_string(i)));
      runtimes.push_back(&threads_.back()->runtime());
      const auto layer = static_cast<int32_t>(i);
      const sim::SimulatedStage stage{.layer_begin = layer,
                                      .layer_end = layer + 1,
                                      .first = i == 0,
                                      .last = i + 1 == options.stage_count,
                                      .cost = {.fixed_us = 30, .per_row_us = 2}};
      const auto own_fault = stage.last ? fault : std::function<void()>();
      runners.push_back([model = options.model, stage, bounds = shape.bounds, own_fault](async::Runtime& runtime) {
        return std::make_unique<sim::SimulatedRunner>(
            runtime, model, stage, bounds, [] { return uint64_t{0}; }, own_fault);
      });
    }
    stages_ = std::make_unique<sched::LocalStages>(head_.runtime(), runtimes, runners, StageId(0), shape);
    builder_ = std::make_unique<sched::InProcessRingBuilder>(head_.runtime(), *stages_, shape);
    ring_ = std::make_unique<sched::Ring>(head_.runtime(), options.head, *builder_);
    ring_->start();
  }
  ~ThreadedRing() {
    ring_->stop();
    head_.join();
    for (const auto& thread : threads_) thread->join();
  }

  [[nodiscard]] sched::Head& head() { return ring_->head(); }
  void wait_until_ready() {
    for (int tries = 0; tries < 30'000 && !head().status().ready; ++tries) std::this_thread::sleep_for(1ms);
    REQUIRE(head().status().ready);
  }

 private:
  async::IoThread head_{"head"};
  std::vector<std::unique_ptr<async::IoThread>> threads_;
  std::unique_ptr<sched::LocalStages> stages_;
  std::unique_ptr<sched::InProcessRingBuilder> builder_;
  std::unique_ptr<sched::Ring> ring_;
};

/// Returns a ring whose pages hold fewer sequences than it may run, so that it retracts some.
sim::SimulatedRingOptions short_of_pages() {
  sim::SimulatedRingOptions ring;
  ring.stage_count = 3;
  ring.model.layer_count = 3;
  sched::SchedulerOptions& scheduler = ring.head.scheduler;
  scheduler.page_size = 4;
  scheduler.page_count = 32;
  scheduler.max_running = 6;
  scheduler.window = 4;
  scheduler.stage_count = ring.stage_count;
  scheduler.chunked_prefill_size = 16;
  scheduler.context_length = 64;
  scheduler.new_token_ratio = 0;
  ring.head.audit = true;
  ring.head.max_queued = 64;
  ring.head.heartbeat = 1s;
  ring.head.watchdog = 100s;
  return ring;
}

std::vector<Job> jobs_of(uint64_t client, Dice& dice) {
  std::vector<Job> jobs(10);
  for (size_t i = 0; i < jobs.size(); ++i) {
    Job& job = jobs[i];
    job.request.id = std::to_string(client) + " " + std::to_string(i);
    job.request.max_tokens = dice.range(1, 30);
    job.arrival = std::chrono::microseconds(dice.range(0, 40'000));
    const uint32_t length = dice.range(2, 30);
    for (uint32_t at = 0; at < length; ++at) job.request.prompt.push_back(static_cast<TokenId>(at + 1));
    job.request.prompt.back() = static_cast<TokenId>(dice.range(100, 900));
    if (dice.chance(0.3)) job.leave_after = dice.range(1, 5);
  }
  return jobs;
}

/// Runs the jobs of several clients, each on a thread of its own, to their ends.
void run_clients(sched::Head& head, std::vector<std::vector<Job>>& clients) {
  std::vector<std::unique_ptr<async::IoThread>> threads;
  std::vector<std::unique_ptr<async::TaskGroup>> tasks;
  for (std::vector<Job>& jobs : clients) {
    async::IoThread& thread = *threads.emplace_back(std::make_unique<async::IoThread>("client"));
    async::TaskGroup& group = *tasks.emplace_back(std::make_unique<async::TaskGroup>(thread.runtime()));
    asio::post(thread.context(), [&] {
      for (Job& job : jobs) group.spawn("client", act_as_client(thread.runtime(), head, job));
    });
  }
  for (const auto& thread : threads) thread->join();
}

}  // namespace

TEST_CASE("clients on threads get their tokens from a ring that breaks") {
  const auto options = short_of_pages();
  std::atomic<int> runs_until_fault{1'000'000'000};
  ThreadedRing ring(options, [&] {
    if (--runs_until_fault == 0) throw std::runtime_error("a cosmic ray");
  });
  ring.wait_until_ready();
  Dice dice(7);
  std::vector<std::vector<Job>> clients = {jobs_of(0, dice), jobs_of(1, dice), jobs_of(2, dice)};
  run_clients(ring.head(), clients);
  for (const auto& jobs : clients) {
    for (const Job& job : jobs) require_right_end(job, options);
  }
  runs_until_fault = 20;
  clients = {jobs_of(3, dice), jobs_of(4, dice)};
  run_clients(ring.head(), clients);
  REQUIRE(runs_until_fault <= 0);
  for (const auto& jobs : clients) {
    for (const Job& job : jobs) require_right_end(job, options, {.breaks = {"a cosmic ray"}});
  }
  ring.wait_until_ready();
  clients = {jobs_of(5, dice)};
  run_clients(ring.head(), clients);
  for (const Job& job : clients.front()) require_right_end(job, options);
}
