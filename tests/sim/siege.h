#pragma once

#include "sim/saboteur.h"

/// Rings that are too small for what is asked of them, under clients and administrators that interfere.
namespace millrace::test {

/// Pages for little more than one request of full length, and a window that no load fills.
inline sim::SimulatedRingOptions cramped_ring(Dice& dice) {
  auto ring = strange_ring(dice);
  ring.head.max_queued = 64;
  sched::SchedulerOptions& scheduler = ring.head.scheduler;
  scheduler.page_count = 64 / scheduler.page_size + dice.range(0, 3);
  scheduler.context_length = 64;
  scheduler.max_running = dice.range(2, 12);
  scheduler.window = ring.stage_count + dice.range(0, 12);
  if (dice.chance(0.5)) scheduler.policy = sched::QueuePolicy::kPriority;
  scheduler.new_token_ratio = 0.35 * dice.range(0, 1);
  if (scheduler.host_page_count > 0) scheduler.host_page_count = dice.range(1, scheduler.page_count);
  return ring;
}

/// With limits of time that some requests exceed.
inline sim::SimulatedRingOptions impatient_ring(Dice& dice) {
  auto options = cramped_ring(dice);
  if (dice.chance(0.2)) options.head.queue_timeout = std::chrono::milliseconds(dice.range(1, 300));
  if (dice.chance(0.2)) options.head.run_timeout = std::chrono::milliseconds(dice.range(1, 300));
  return options;
}

/// Prompts of which two hardly fit at once, in several priorities.
inline std::vector<Job> greedy_jobs(Dice& dice) {
  auto jobs = random_jobs(dice);
  jobs.resize(std::max<size_t>(jobs.size(), dice.range(8, 20)));
  for (size_t i = 0; i < jobs.size(); ++i) {
    Job& job = jobs[i];
    job.request.id = std::to_string(i);
    while (job.request.prompt.size() < 10 || dice.chance(0.95)) {
      if (job.request.prompt.size() == 60) break;
      job.request.prompt.push_back(static_cast<TokenId>(dice.range(0, 49)));
    }
    if (job.request.max_tokens > 0) job.request.max_tokens = dice.range(1, 60);
    job.request.priority = static_cast<int32_t>(dice.range(0, 4));
    job.arrival = kProfileEnd + std::chrono::microseconds(dice.range(2000, 30'000));
    job.leave_after.reset();
  }
  return jobs;
}

/// Goes away without a word at any moment: while its request waits, between two chunks, while it is sent back.
inline asio::awaitable<void> leave_early(async::Runtime& runtime, sched::Engine& engine, Job& job,
                                         async::Duration timeout) {
  async::TaskGroup client(runtime);
  client.spawn("impatient client", act_as_client(runtime, engine, job));
  co_await async::sleep_for(runtime, job.arrival + timeout);
  client.cancel();
  co_await client.join();
  job.left = !job.refused && job.endings == 0;
}

/// Floods of aborts, and pauses of every kind that follow each other, up to `pace` apart.
inline asio::awaitable<void> interfere(async::Runtime& runtime, sched::Head& head, Dice dice, size_t job_count,
                                       async::Duration pace) {
  const auto up_to = [&](async::Duration most) { return most * dice.range(0, 1000) / 1000; };
  co_await async::sleep_for(runtime, kProfileEnd + 2ms);
  for (uint32_t round = dice.range(1, 12); round > 0; --round) {
    co_await async::sleep_for(runtime, up_to(pace));
    if (dice.chance(0.4)) {
      for (size_t i = dice.range(0, 2); i < job_count; i += dice.range(1, 4)) (void)head.abort(std::to_string(i));
    }
    if (dice.chance(0.6)) head.pause(static_cast<sched::PauseMode>(dice.chance(0.1) ? 2 : dice.range(0, 1)));
    if (dice.chance(0.5)) co_await async::sleep_for(runtime, up_to(pace / 5));
    head.resume();
  }
}

/// What came of the jobs of some worlds.
struct Casualties {
  uint64_t preemptions = 0;
  uint64_t aborted = 0;
  uint64_t timed_out = 0;
  uint64_t refused = 0;
  uint64_t left = 0;
  uint64_t whole = 0;
  uint64_t flushed = 0;
  uint64_t fetched = 0;
  std::vector<uint64_t> broken = std::vector<uint64_t>(Saboteur::errors().size());  ///< by what they heard

  void count(const std::vector<Job>& jobs, const sim::SimulatedRingOptions& options, const Perils& perils) {
    for (const Job& job : jobs) {
      require_right_end(job, options, perils);
      for (size_t i = 0; i < broken.size(); ++i) broken[i] += failed_with(job, Saboteur::errors()[i]) ? 1 : 0;
      aborted += job.finish == sched::FinishReason::kAbort ? 1 : 0;
      timed_out += job.error && job.error->code == ErrorCode::kTimeout ? 1 : 0;
      refused += job.refused ? 1 : 0;
      left += job.left ? 1 : 0;
      whole += job.refused || job.left || cut_short(job, options.head, perils) ? 0 : 1;
    }
  }
};

/// Clients and administrators of a world that interfere, up to `pace` apart, until its ring serves in peace again.
inline void besiege(World& world, uint64_t seed, Dice& dice, const sim::SimulatedRingOptions& options,
                    std::vector<Job>& jobs, async::Duration pace, Perils perils, Casualties& casualties) {
  if (options.make_store) {  // as a server before left it
    World before(seed);
    auto same = asked_again(jobs, " before");
    before.start(options, same);
    before.run_to_end();
    before.stop();
  }
  auto leaving = asked_again(greedy_jobs(dice), " by those who leave");
  world.start(options, jobs);
  for (size_t i = 0; i < leaving.size(); ++i) {
    leaving[i].request.id = "leaving " + std::to_string(i);
    leaving[i].arrival += pace * dice.range(0, 4);
    const async::Duration timeout = std::chrono::microseconds(dice.range(0, 20'000));
    world.spawn(leave_early(world.client_thread(), world.head(), leaving[i], timeout));
  }
  world.spawn(interfere(world.client_thread(), world.head(), Dice(seed + 1'000'000), jobs.size(), pace));
  world.spawn(flush_now_and_then(world.client_thread(), world.head(), Dice(seed + 2'000'000), casualties.flushed));
  world.run_to_end();
  world.flush_to_nothing();
  casualties.preemptions += world.head().status().preemptions;
  casualties.fetched += world.head().status().cache.fetched_pages;
  perils.aborts = true;
  casualties.count(jobs, options, perils);
  casualties.count(leaving, options, perils);
  world.stop();
}

/// A cramped ring of that seed, besieged.
inline History besiege_cramped(uint64_t seed, Casualties& casualties) {
  Dice dice(seed);
  const auto options = impatient_ring(dice);
  auto jobs = greedy_jobs(dice);
  World world(seed);
  besiege(world, seed, dice, options, jobs, 10ms, {}, casualties);
  return world.history();
}

/// One that breaks meanwhile, how often in which way.
inline History besiege_breaking(uint64_t seed, Casualties& casualties,
                                std::array<uint64_t, Saboteur::kWayCount>& breaks) {
  Dice dice(seed);
  auto options = impatient_ring(dice);
  auto jobs = greedy_jobs(dice);
  for (Job& job : jobs) job.arrival += std::chrono::milliseconds(dice.range(0, 1000));
  World world(seed);
  Saboteur saboteur(dice, options, [&world] {
    return world.now() > async::TimePoint(kProfileEnd) && world.now() < async::TimePoint(5s);
  });
  besiege(world, seed, dice, options, jobs, 100ms, {.breaks = Saboteur::errors()}, casualties);
  for (size_t way = 0; way < breaks.size(); ++way) breaks[way] += saboteur.done()[way];
  return world.history();
}

}  // namespace millrace::test
