#pragma once

#include <new>

#include "grammar/ebnf.h"
#include "sim/jobs.h"
#include "sim/simulated_store.h"

/// Random rings, and what is asked of them.
namespace millrace::test {

/// Puts a store behind the host tier: slow, failing on some stages, and outliving the ring's epochs.
inline void add_store(Dice& dice, sim::SimulatedRingOptions& ring, double failure_rate) {
  ring.head.scheduler.has_store = true;
  ring.head.scheduler.prefetch_policy = static_cast<sched::PrefetchPolicy>(dice.range(0, 2));
  if (ring.head.scheduler.prefetch_policy == sched::PrefetchPolicy::kTimeout) ring.head.prefetch_timeout = 300ms;
  const auto store_backend =
      std::make_shared<sim::SimulatedStoreBackend>(failure_rate == 0 ? 1000 : dice.range(4, 400));
  const uint64_t seed = dice.range(0, 1u << 30);
  const StageId failing(dice.range(0, ring.stage_count));  // one past the last: none
  const async::Duration slowest = std::chrono::microseconds(dice.range(0, 3000));
  ring.make_store = [=](async::Runtime& runtime, const cache::StoreIdentity& identity) {
    const StageId stage(identity.layer_begin);
    const uint32_t rank = identity.head_begin;
    const auto own = std::make_shared<Dice>(seed + stage.value() + 100 * rank + identity.window);
    sim::SimulatedStoreOptions options;
    options.delay = [own, slowest](sim::StoreCall, size_t) { return slowest * own->range(0, 100) / 100; };
    options.fails = [own, failure_rate, is_failing = stage == failing](sim::StoreCall) {
      const bool fails = is_failing && own->chance(failure_rate);
      if (fails && own->chance(0.1)) throw std::bad_alloc();
      return fails;
    };
    return sim::make_simulated_store(runtime, identity, store_backend, options);
  };
}

/// The model of all random rings, but for rows that fail.
inline constexpr sim::SimulatedModel kRandomModel{.vocab_size = 50};

/// Returns a ring of two stages and two running requests, in 250 pages of four tokens.
inline sim::SimulatedRingOptions small_ring() {
  sim::SimulatedRingOptions ring;
  ring.stage_count = 2;
  ring.model = kRandomModel;
  ring.costs.push_back({50, 1, 0.01, 1.0});
  sched::SchedulerOptions& scheduler = ring.head.scheduler;
  scheduler.page_size = 4;
  scheduler.page_count = 250;
  scheduler.max_running = 2;
  scheduler.window = 2;
  scheduler.stage_count = 2;
  scheduler.chunked_prefill_size = 16;
  scheduler.context_length = 1000;
  ring.head.audit = true;
  ring.head.max_queued = 64;
  ring.head.heartbeat = 1s;
  ring.head.watchdog = 100s;
  return ring;
}

inline sim::SimulatedRingOptions random_ring(Dice& dice) {
  sim::SimulatedRingOptions ring;
  ring.stage_count = dice.range(1, 4);
  ring.model = kRandomModel;
  for (uint32_t i = 0; i < ring.stage_count; ++i) {
    ring.costs.push_back({static_cast<double>(dice.range(10, 200)), static_cast<double>(dice.range(0, 10)), 0.01, 1.0});
  }
  sched::SchedulerOptions& scheduler = ring.head.scheduler;
  scheduler.page_size = 1u << (dice.chance(0.9) ? dice.range(0, 3) : dice.range(4, 6));
  scheduler.page_count = std::max(dice.range(64, 200) / scheduler.page_size, 2U);
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
  if (dice.chance(0.6)) {
    scheduler.draft_tokens = dice.range(1, dice.chance(0.8) ? 8 : 63);
    scheduler.draft_history = dice.chance(0.7);
  }
  if (dice.chance(0.5)) {
    ring.links.bytes_per_second = dice.range(1, 100) * 1e6;
    ring.links.latency = std::chrono::microseconds(dice.range(0, 300));
  }
  scheduler.first_copy_id = (uint64_t{dice.range(0, 1u << 30)} << 32) + 1;
  ring.head.audit = true;
  ring.head.max_queued = 64;
  ring.head.heartbeat = 1s;
  ring.head.watchdog = 100s;
  if (dice.chance(0.2)) ring.rank_count = 1U << (dice.chance(0.7) ? 1 : dice.range(2, 3));
  if (ring.rank_count > 1) ring.collectives.latency = std::chrono::microseconds(dice.range(0, 20));
  if (dice.chance(0.5)) {
    ring.model.window = dice.range(1, dice.chance(0.7) ? 12 : 60);
    ring.model.all_slide = dice.chance(0.3);
    scheduler.windows = ring.model.windows();
    scheduler.expected_tokens = dice.range(1, 64);
  }
  if (dice.chance(0.4)) {
    ring.model.state_one_in = static_cast<int32_t>(dice.range(1, 4));
    scheduler.windows = ring.model.windows();
    scheduler.expected_tokens = dice.range(1, 200);
    scheduler.snapshot_pages = dice.range(0, 3);
  }
  if (dice.chance(0.2)) scheduler.expected_tokens = 0;
  if (dice.chance(0.2)) scheduler.longest_tokens = dice.range(1, 1000);
  if (dice.chance(0.2)) scheduler.window_sequences = dice.range(1, 10);
  return ring;
}

/// A random ring with what is asked for less often: contexts that many prompts don't fit, chunks larger than any
/// prompt, queues of a few, stages that share processors, decode that is not spread, rows that fail.
inline sim::SimulatedRingOptions strange_ring(Dice& dice) {
  auto ring = random_ring(dice);
  sched::SchedulerOptions& scheduler = ring.head.scheduler;
  const uint32_t all_tokens = scheduler.page_count * scheduler.page_size;
  if (dice.chance(0.2)) scheduler.context_length = dice.range(2, std::min(160U, all_tokens));
  if (dice.chance(0.2)) scheduler.chunked_prefill_size = dice.range(33, 128);
  if (dice.chance(0.1)) scheduler.window += dice.range(3, 8);
  scheduler.spread_decodes = dice.chance(0.9);
  if (dice.chance(0.3)) {
    scheduler.processors = dice.range(1, 8);
    scheduler.stage_threads = dice.range(1, 4);
  }
  if (dice.chance(0.1)) ring.head.max_queued = dice.range(1, 4);
  if (dice.chance(0.2)) ring.model.distinct_tokens = dice.range(1, 4);
  if (dice.chance(0.1)) ring.model.faulty_one_in = dice.range(20, 200);
  return ring;
}

/// A random ring with a roomy host tier that gets every page, also of window groups, and every snapshot.
inline sim::SimulatedRingOptions roomy_ring(Dice& dice) {
  auto options = random_ring(dice);
  sched::SchedulerOptions& scheduler = options.head.scheduler;
  scheduler.share_prefixes = true;
  scheduler.host_page_count = 4 * scheduler.page_count;
  scheduler.write_policy = cache::WritePolicy::kWriteThrough;
  scheduler.expected_tokens = 1;
  scheduler.window_sequences = 0;
  scheduler.snapshot_pages = 1;
  scheduler.has_store = false;
  options.make_store = {};
  options.head.prefetch_timeout = {};
  return options;
}

/// Such a ring without states, with pages of one token and a store that takes so long for each call of one kind; of so
/// many stages, if it matters.
inline sim::SimulatedRingOptions ring_with_slow_store(Dice& dice, sim::StoreCall slow, async::Duration duration,
                                                      uint32_t stage_count = 0) {
  auto options = roomy_ring(dice);
  if (stage_count > 0) options.stage_count = options.head.scheduler.stage_count = stage_count;
  options.model.state_one_in = 0;
  options.head.scheduler.windows = options.model.windows();
  options.head.scheduler.page_size = 1;
  options.head.scheduler.page_count = 200;
  options.head.scheduler.host_page_count = 800;
  options.head.scheduler.chunking = sched::Chunking::kFixed;
  options.head.scheduler.chunked_prefill_size = 64;
  options.head.scheduler.has_store = true;
  options.head.scheduler.prefetch_policy = sched::PrefetchPolicy::kBestEffort;
  const auto store_backend = std::make_shared<sim::SimulatedStoreBackend>(1000);
  options.make_store = [=](async::Runtime& runtime, const cache::StoreIdentity& identity) {
    return sim::make_simulated_store(runtime, identity, store_backend, {.delay = [=](sim::StoreCall call, size_t) {
                                       return call == slow ? duration : async::Duration{};
                                     }});
  };
  return options;
}

/// What a draw may depend on besides the tokens before it.
inline tensor::SamplingParams random_sampling(Dice& dice) {
  tensor::SamplingParams sampling;
  if (dice.chance(0.3)) sampling.stop_token_ids = {7, 11};
  if (dice.chance(0.3)) sampling.min_tokens = dice.range(0, 10);
  if (dice.chance(0.3)) sampling.repetition_penalty = 1.5F;
  if (dice.chance(0.1)) sampling.frequency_penalty = 0.5F;
  if (dice.chance(0.1)) sampling.presence_penalty = -0.5F;
  if (dice.chance(0.5)) sampling.temperature = 0.5F * static_cast<float>(dice.range(0, 3));
  if (dice.chance(0.2)) sampling.top_k = static_cast<int32_t>(dice.range(1, 50));
  if (dice.chance(0.2)) sampling.top_p = 0.9F;
  if (dice.chance(0.1)) sampling.min_p = 0.1F;
  if (dice.chance(0.1)) sampling.logit_bias = {{static_cast<TokenId>(dice.range(0, 49)), 2.0F}};
  if (dice.chance(0.3)) sampling.top_logprobs = static_cast<int32_t>(dice.range(0, 3));
  sampling.seed = dice.range(0, 1000);
  return sampling;
}

/// Ends such answers where requests stop at it, as some do.
inline constexpr TokenId kGrammarEnd = 7;

/// Returns a vocabulary whose tokens spell one or two letters.
inline const std::shared_ptr<const grammar::Vocabulary>& letters() {
  static const auto vocabulary = [] {
    std::vector<std::string> texts;
    for (uint32_t token = 0; token < kRandomModel.vocab_size; ++token) {
      texts.push_back(std::string{"abcde"[token % 5]} + (token < 15 ? "" : std::string{"abcde"[token / 5 % 5]}));
    }
    texts[kGrammarEnd].clear();
    return std::make_shared<const grammar::Vocabulary>(texts);
  }();
  return vocabulary;
}

/// Returns a bound on reasoning that two tokens end.
inline std::shared_ptr<const sched::ReasoningLimit> random_reasoning_limit(Dice& dice) {
  return std::make_shared<const sched::ReasoningLimit>(sched::ReasoningLimit{.max_tokens = dice.range(0, 12),
                                                                             .begins_inside = dice.chance(0.7),
                                                                             .start = "a",
                                                                             .end = "bec",
                                                                             .early_end = dice.chance(0.3) ? "dd" : "",
                                                                             .end_tokens = {1, 4, 2},
                                                                             .vocabulary = letters()});
}

/// What answers may be held to, over letters().
inline const std::vector<std::shared_ptr<const grammar::Grammar>>& some_grammars() {
  static const auto grammars = [] {
    std::vector<std::shared_ptr<const grammar::Grammar>> made;
    for (const char* text :
         {"root ::= [a-d]{3,9}", "root ::= \"a\" root* \"b\"", "root ::= [^e]* \"e\"",
          "root ::= (\"ab\" | \"cd\")+ \"e\" root | \"b\"", "root ::= (\"abcde\" | \"bade\") [a-d] root? \"eacdc\""}) {
      grammar::Definition definition;
      definition.root = grammar::parse_ebnf(text, definition).value();
      made.push_back(grammar::Grammar::compile(definition, letters(), {kGrammarEnd}).value());
    }
    return made;
  }();
  return grammars;
}

/// Returns a prompt of many tokens.
inline std::vector<TokenId> long_prompt(size_t tokens) {
  std::vector<TokenId> prompt(tokens);
  for (size_t i = 0; i < tokens; ++i) prompt[i] = static_cast<TokenId>(i * i % 47);
  return prompt;
}

/// Begins `job` with another's prompt and what it was or will be answered: a conversation that goes on, or an answer
/// that is wanted of two while it is drawn.
inline void go_on_from(Dice& dice, const Job& before, Job& job) {
  const sched::GenerateRequest& request = before.request;
  job.request.prompt = request.prompt;
  const auto answer =
      kRandomModel
          .generate(request.prompt, dice.range(0, 20), request.sampling, 0, request.grammar, request.reasoning_limit)
          .tokens;
  job.request.prompt.insert(job.request.prompt.end(), answer.begin(), answer.end());
  job.request.prompt.resize(std::min<size_t>(job.request.prompt.size(), 39));
  job.request.cache_salt = request.cache_salt;
  job.arrival = before.arrival + std::chrono::microseconds(dice.range(0, 50'000));
}

/// What `job` will be answered, more or less: with tokens that are others, that are missing, or too many.
inline std::vector<TokenId> random_prediction(Dice& dice, const Job& job) {
  const sched::GenerateRequest& request = job.request;
  const auto answer =
      kRandomModel.generate(request.prompt, 45, request.sampling, 0, request.grammar, request.reasoning_limit).tokens;
  const double wrong = 0.1 * dice.range(0, 3);
  std::vector<TokenId> prediction;
  for (const TokenId token : answer) {
    const bool changes = dice.chance(wrong);
    if (!changes || dice.chance(0.3)) prediction.push_back(token);
    if (changes && dice.chance(0.7)) prediction.push_back(static_cast<TokenId>(dice.range(0, 49)));
  }
  return prediction;
}

/// Makes a job want the vector of its prompt, and nothing else.
inline void make_pooled(Dice& dice, Job& job) {
  job.request.pooling = static_cast<sched::Pooling>(dice.range(1, 3));
  job.request.max_tokens = 0;
  job.request.prompt_top_logprobs = -1;
  job.request.grammar = nullptr;
  job.request.reasoning_limit = nullptr;
  job.request.prediction.clear();
  job.leave_after.reset();
}

inline Job random_job(Dice& dice, const std::vector<TokenId>& common, const std::vector<Job>& others) {
  Job job;
  job.request.sampling = random_sampling(dice);
  if (dice.chance(0.3)) job.request.grammar = some_grammars()[dice.range(0, 4)];
  if (dice.chance(0.2)) job.request.reasoning_limit = random_reasoning_limit(dice);
  if (!others.empty() && dice.chance(0.25)) {
    go_on_from(dice, others[dice.range(0, static_cast<uint32_t>(others.size()) - 1)], job);
  } else if (dice.chance(0.1)) {                                    // pages that are alike, one behind the other
    const TokenId token = static_cast<TokenId>(dice.range(0, 49));  // the order of arguments is the compiler's
    job.request.prompt.assign(dice.range(0, 39), token);
  } else if (dice.chance(0.6)) {
    job.request.prompt.assign(common.begin(), common.begin() + dice.range(0, 30));
  }
  for (uint32_t i = dice.range(1, 40 - static_cast<uint32_t>(job.request.prompt.size())); i > 0; --i)
    job.request.prompt.push_back(static_cast<TokenId>(dice.range(0, 49)));
  if (dice.chance(0.1)) job.request.cache_salt = "other";
  job.request.max_tokens = dice.chance(0.05) ? INT32_MAX : dice.range(1, 40);
  job.request.priority = static_cast<int32_t>(dice.range(0, 3)) - 1;
  if (dice.chance(0.2)) job.request.prompt_top_logprobs = static_cast<int32_t>(dice.range(0, 2));
  if (job.request.prompt_top_logprobs >= 0 && dice.chance(0.2)) job.request.max_tokens = 0;
  if (dice.chance(0.4)) job.request.prediction = random_prediction(dice, job);
  if (dice.chance(0.3)) job.leave_after = dice.range(1, 10);
  if (dice.chance(0.2)) job.dawdle = std::chrono::microseconds(dice.range(0, 5000));
  if (dice.chance(0.15)) make_pooled(dice, job);
  return job;
}

inline std::vector<Job> random_jobs(Dice& dice) {
  std::vector<Job> jobs;
  const uint32_t last_arrival_us = dice.chance(0.5) ? 12'000 : 300'000;
  std::vector<TokenId> common(30);  // what many prompts begin with
  for (TokenId& token : common) token = static_cast<TokenId>(dice.range(0, 49));
  for (uint32_t count = dice.range(1, 12); jobs.size() < count;) {
    Job job;
    if (!jobs.empty() && dice.chance(0.1)) {  // another choice of the same request
      job = jobs.back();
      job.request.sampling.seed = dice.range(0, 1000);
    } else {
      job = random_job(dice, common, jobs);
    }
    job.request.id = std::to_string(jobs.size());
    if (dice.chance(0.05) || job.request.cache_salt.starts_with("alone")) {
      job.request.cache_salt = "alone " + job.request.id;
    }
    if (job.arrival == async::Duration{}) {
      job.arrival = kProfileEnd + std::chrono::microseconds(dice.range(2000, last_arrival_us));
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

/// Returns the same requests `at_another_time`; those that share with nobody do not share with these either.
inline std::vector<Job> asked_again(std::vector<Job> jobs, std::string_view at_another_time) {
  for (Job& job : jobs) {
    if (job.request.cache_salt.starts_with("alone")) job.request.cache_salt += at_another_time;
  }
  return jobs;
}

inline asio::awaitable<void> flush(async::Runtime& runtime, sched::Engine& engine, async::Duration timeout,
                                   std::optional<Result<void>>& answer) {
  answer = co_await engine.flush_cache(runtime, timeout);
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

/// What two runs of one seed have in common.
struct History {
  uint64_t trace_hash = 0;
  uint64_t steps = 0;
  uint64_t next_draw = 0;  ///< equal when as many random numbers were drawn before
  friend bool operator==(const History&, const History&) = default;
};

/// A ring in virtual time and the clients of some jobs. A REQUIRE that fails while tasks are left ends the program, by
/// what their owners check: the seed is told before that, and the tests behind it do not run.
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
    jobs_ = &jobs;
  }
  [[nodiscard]] async::Runtime& client_thread() { return *client_thread_; }
  /// Runs a task on the clients' thread; run_to_end() waits for it.
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
    for (const Job& job : *jobs_) REQUIRE_FALSE(head().abort(job.request.id));  // nothing goes by these ids any more
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
    REQUIRE(clients_->size() == 0);
  }
  [[nodiscard]] History history() { return {world_.trace_hash(), world_.step_count(), world_.random()}; }
  [[nodiscard]] uint64_t step_count() const { return world_.step_count(); }

 private:
  async::VirtualWorld world_;
  std::optional<sim::SimulatedRing> ring_;
  async::Runtime* client_thread_ = nullptr;
  const std::vector<Job>* jobs_ = nullptr;
  std::optional<async::TaskGroup> clients_;
};

}  // namespace millrace::test
