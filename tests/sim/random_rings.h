#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <new>

#include "base/random.h"
#include "sim/simulated_ring.h"
#include "sim/simulated_store.h"

/// Random rings, their clients, and what the clients must get.
namespace millrace::test {

using namespace std::chrono_literals;

/// The stages have been timed by then, and the ring is ready.
inline constexpr async::Duration kProfileEnd = 1s;

/// What one client asked for and what came of it.
struct Job {
  sched::GenerateRequest request;
  async::Duration arrival{};
  std::optional<size_t> leave_after;  ///< destroys its stream after so many tokens
  std::vector<TokenId> tokens;
  std::vector<tensor::TokenLogprobs> scores;
  std::vector<tensor::TokenLogprobs> prompt_scores;
  sched::Timings timings;
  std::optional<async::TimePoint> first_token;
  uint32_t cached_tokens = 0;
  int endings = 0;
  std::optional<sched::FinishReason> finish;
  std::optional<Error> error;
  bool refused = false;
  bool left = false;
};

inline asio::awaitable<void> act_as_client(async::Runtime& runtime, sched::Engine& engine, Job& job) {
  co_await async::sleep_for(runtime, job.arrival);
  auto stream = engine.submit(job.request, runtime);
  if (stream.has_error()) {
    job.refused = true;
    job.error = stream.error();
    co_return;
  }
  for (;;) {
    const sched::GenerateEvent event = co_await (*stream)->next();
    if (!job.first_token && !event.tokens.empty()) job.first_token = runtime.now();
    job.tokens.insert(job.tokens.end(), event.tokens.begin(), event.tokens.end());
    job.scores.insert(job.scores.end(), event.logprobs.begin(), event.logprobs.end());
    job.prompt_scores.insert(job.prompt_scores.end(), event.prompt_logprobs.begin(), event.prompt_logprobs.end());
    job.cached_tokens = event.cached_tokens;
    job.timings = event.timings;
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
inline void add_store(Dice& dice, sim::SimulatedRingOptions& ring, double failure_rate) {
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
      const bool fails = is_failing && own->chance(failure_rate);
      if (fails && own->chance(0.1)) throw std::bad_alloc();
      return fails;
    };
    return sim::make_simulated_store(runtime, identity, shelf, options);
  };
}

inline sim::SimulatedRingOptions random_ring(Dice& dice) {
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

inline std::vector<Job> random_jobs(Dice& dice) {
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
    if (dice.chance(0.3)) job.request.sampling.min_tokens = dice.range(0, 10);
    if (dice.chance(0.3)) job.request.sampling.repetition_penalty = 1.5F;  // draws depend on all that came before
    job.request.sampling.seed = dice.range(0, 1000);
    if (dice.chance(0.2)) job.request.sampling.top_logprobs = 0;
    if (dice.chance(0.2)) job.request.prompt_top_logprobs = 0;
    if (job.request.prompt_top_logprobs == 0 && dice.chance(0.2)) job.request.max_tokens = 0;
    if (dice.chance(0.3)) job.leave_after = dice.range(1, 10);
    job.arrival = kProfileEnd + std::chrono::microseconds(dice.range(2000, last_arrival_us));
  }
  return jobs;
}

/// A job that draws five tokens after `prompt`.
inline Job job_at(async::Duration arrival, std::vector<TokenId> prompt) {
  Job job;
  job.request.id = std::to_string(arrival.count());
  job.request.prompt = std::move(prompt);
  job.request.max_tokens = 5;
  job.arrival = arrival;
  return job;
}

/// What `job` must yield if nothing goes wrong, from the model alone.
inline sim::SimulatedModel::Continuation expected_answer(const Job& job, const sim::SimulatedRingOptions& ring) {
  const sched::GenerateRequest& request = job.request;
  const size_t room = ring.head.scheduler.context_length - request.prompt.size();
  auto answer = ring.model.generate(request.prompt, std::min<size_t>(request.max_tokens, room), request.sampling);
  std::vector<TokenId>& tokens = answer.tokens;
  for (size_t i = std::max(request.sampling.min_tokens, 1U) - 1; i < tokens.size(); ++i) {
    const auto& stops = request.sampling.stop_token_ids;
    if (std::find(stops.begin(), stops.end(), tokens[i]) != stops.end()) tokens.resize(i + 1);
  }
  return answer;
}

inline std::vector<TokenId> expected_tokens(const Job& job, const sim::SimulatedRingOptions& ring) {
  return expected_answer(job, ring).tokens;
}

inline void require_scores(std::span<const tensor::TokenLogprobs> found,
                           std::span<const tensor::TokenLogprobs> wanted) {
  REQUIRE(found.size() == wanted.size());
  for (size_t i = 0; i < found.size(); ++i) {
    REQUIRE(found[i].token == wanted[i].token);
    REQUIRE(found[i].logprob == wanted[i].logprob);
    REQUIRE(found[i].rank == wanted[i].rank);
  }
}

/// All tokens, and the scores where asked for, once.
inline void require_whole_answer(const Job& job, const sim::SimulatedRingOptions& ring) {
  auto wanted = expected_answer(job, ring);
  REQUIRE(job.tokens == wanted.tokens);
  wanted.scores.resize(job.request.sampling.top_logprobs >= 0 ? job.tokens.size() : 0);
  require_scores(job.scores, wanted.scores);
  if (job.request.prompt_top_logprobs < 0) {
    REQUIRE(job.prompt_scores.empty());
    return;
  }
  REQUIRE_FALSE(job.prompt_scores.empty());
  REQUIRE(job.prompt_scores.front().token == job.request.prompt.front());
  REQUIRE(std::isnan(job.prompt_scores.front().logprob));
  require_scores(std::span(job.prompt_scores).subspan(1), wanted.prompt_scores);
}

inline asio::awaitable<void> flush(async::Runtime& runtime, sched::Engine& engine, async::Duration patience,
                                   std::optional<Result<void>>& answer) {
  answer = co_await engine.flush_cache(runtime, patience);
}

/// Asks for flushes at any moment, willing to wait for some; how many were carried out.
inline asio::awaitable<void> flush_now_and_then(async::Runtime& runtime, sched::Engine& engine, Dice dice,
                                                uint64_t& flushed) {
  co_await async::sleep_for(runtime, kProfileEnd);
  for (uint32_t rounds = dice.range(0, 6); rounds > 0; --rounds) {
    co_await async::sleep_for(runtime, std::chrono::microseconds(dice.range(0, 60'000)));
    const auto answer = co_await engine.flush_cache(runtime, std::chrono::microseconds(dice.range(0, 5000)));
    if (!answer.has_error()) ++flushed;
  }
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
  [[nodiscard]] async::Runtime& client_thread() { return *client_thread_; }
  /// Beside the clients, on their thread; run_to_end() waits for it.
  void spawn(asio::awaitable<void> task) { clients_->spawn("task", std::move(task)); }
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
  /// Once nobody wants anything any more, everything can be forgotten, and nothing is left then.
  void flush_to_nothing() {
    std::optional<Result<void>> answer;
    spawn(flush(*client_thread_, head(), 0s, answer));
    world_.run(now() + 4s);
    REQUIRE(answer.has_value());
    REQUIRE_FALSE(answer->has_error());
    const sched::EngineStatus status = head().status();
    REQUIRE(status.cached_pages == 0);
    REQUIRE(status.cached_host_pages == 0);
    REQUIRE(status.free_pages == status.total_pages);
  }
  void stop() {
    ring_->stop();
    world_.run();
    REQUIRE(ring_->stopped());
  }
  [[nodiscard]] uint64_t trace_hash() const { return world_.trace_hash(); }
  [[nodiscard]] uint64_t draw() { return world_.random(); }
  [[nodiscard]] uint64_t step_count() const { return world_.step_count(); }

 private:
  async::VirtualWorld world_;
  std::optional<sim::SimulatedRing> ring_;
  async::Runtime* client_thread_ = nullptr;
  std::optional<async::TaskGroup> clients_;
};

}  // namespace millrace::test
