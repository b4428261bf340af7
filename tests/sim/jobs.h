#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "async/task_group.h"
#include "base/random.h"
#include "sim/simulated_ring.h"

/// Clients of rings in virtual time, and what they must get.
namespace millrace::test {

using namespace std::chrono_literals;

/// How long a client keeps the stream of a request that has ended: whatever else came would be found there.
inline constexpr async::Duration kLinger = 500ms;

/// The stages have been timed by then, and the ring is ready.
inline constexpr async::Duration kProfileEnd = 2s;

/// What one client asked for and what came of it.
struct Job {
  sched::GenerateRequest request;
  async::Duration arrival{};
  std::optional<size_t> leave_after;  ///< destroys its stream after so many tokens
  async::Duration dawdle{};           ///< from what it hears to when it listens again
  std::vector<TokenId> tokens;
  std::vector<tensor::TokenLogprobs> scores;
  std::vector<tensor::TokenLogprobs> prompt_scores;
  std::vector<float> pooled;
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
    job.pooled.insert(job.pooled.end(), event.pooled.begin(), event.pooled.end());
    job.cached_tokens = event.cached_tokens;
    job.timings = event.timings;
    if (event.last()) {
      ++job.endings;
      job.finish = event.finish;
      job.error = event.error;
      co_await async::sleep_for(runtime, kLinger);
      co_return;
    }
    if (job.leave_after && job.tokens.size() >= *job.leave_after) {
      job.left = true;
      co_return;
    }
    if (job.dawdle.count() > 0) co_await async::sleep_for(runtime, job.dawdle);
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
struct Answer {
  sim::SimulatedModel::Continuation whole;
  sched::FinishReason finish = sched::FinishReason::kLength;  ///< unless it is faulty
};

inline Answer expected_answer(const Job& job, const sim::SimulatedRingOptions& ring) {
  const sched::GenerateRequest& request = job.request;
  const size_t room = ring.head.scheduler.context_length - request.prompt.size();
  Answer answer{ring.model.generate(request.prompt, std::min<size_t>(request.max_tokens, room), request.sampling,
                                    request.prompt_top_logprobs, request.grammar, request.reasoning_limit)};
  if (answer.whole.complete) answer.finish = sched::FinishReason::kStop;
  std::vector<TokenId>& tokens = answer.whole.tokens;
  const auto& stops = request.sampling.stop_token_ids;
  for (size_t i = std::max(request.sampling.min_tokens, 1U) - 1; i < tokens.size(); ++i) {
    if (std::ranges::find(stops, tokens[i]) == stops.end()) continue;
    tokens.resize(i + 1);
    answer.finish = sched::FinishReason::kStop;
    answer.whole.faulty = false;
  }
  return answer;
}

inline std::vector<TokenId> expected_tokens(const Job& job, const sim::SimulatedRingOptions& ring) {
  return expected_answer(job, ring).whole.tokens;
}

inline void require_scores(std::span<const tensor::TokenLogprobs> found,
                           std::span<const tensor::TokenLogprobs> wanted) {
  REQUIRE(found.size() == wanted.size());
  for (size_t i = 0; i < found.size(); ++i) {
    REQUIRE(found[i].token == wanted[i].token);
    REQUIRE(found[i].logprob == wanted[i].logprob);
    REQUIRE(found[i].rank == wanted[i].rank);
    REQUIRE(found[i].top == wanted[i].top);
  }
}

/// Returns whether it fits the context, together with one token if it draws any.
inline bool admissible(const Job& job, const sim::SimulatedRingOptions& ring) {
  return job.request.prompt.size() + (job.request.max_tokens > 0 ? 1 : 0) <= ring.head.scheduler.context_length;
}

/// Whole pages, of others' prompts and answers alone, and never the last token; none where they may not be shared.
inline void require_cached_tokens(const Job& job, const sched::SchedulerOptions& scheduler) {
  REQUIRE(job.cached_tokens % scheduler.page_size == 0);
  REQUIRE(job.cached_tokens < job.request.prompt.size());
  const sched::Pooling pooling = job.request.pooling;
  const bool needs_all_rows =
      job.request.prompt_top_logprobs >= 0 || pooling == sched::Pooling::kFirst || pooling == sched::Pooling::kMean;
  const bool shares =
      scheduler.share_prefixes && !needs_all_rows && job.request.cache_salt.find("alone") == std::string::npos;
  REQUIRE((shares || job.cached_tokens == 0));
}

/// The vector of the prompt, once; or the reason why it has none.
inline void require_vector(const Job& job, const sim::SimulatedRingOptions& ring) {
  const std::vector<float> wanted = ring.model.embed_prompt(job.request.prompt, job.request.pooling);
  REQUIRE(job.endings == 1);
  REQUIRE(job.tokens.empty());
  REQUIRE(job.pooled == wanted);
  if (wanted.empty()) {
    REQUIRE(job.error->code == ErrorCode::kInternal);
    return;
  }
  REQUIRE_FALSE(job.error.has_value());
  REQUIRE(job.finish == sched::FinishReason::kStop);
  require_cached_tokens(job, ring.head.scheduler);
}

/// All tokens, and the scores where asked for, once; or as many as the model gives, and the reason.
inline void require_whole_answer(const Job& job, const sim::SimulatedRingOptions& ring) {
  if (job.request.pooling != sched::Pooling::kNone) return require_vector(job, ring);
  auto [wanted, finish] = expected_answer(job, ring);
  REQUIRE(job.endings == 1);
  REQUIRE(job.tokens == wanted.tokens);
  if (wanted.faulty) {
    REQUIRE(job.error->code == ErrorCode::kInternal);
    REQUIRE(job.error->message.find("no distribution") != std::string::npos);
  } else {
    REQUIRE_FALSE(job.error.has_value());
    REQUIRE(job.finish == finish);
    require_cached_tokens(job, ring.head.scheduler);
  }
  wanted.scores.resize(job.request.sampling.top_logprobs >= 0 ? job.tokens.size() : 0);
  require_scores(job.scores, wanted.scores);
  if (job.request.prompt_top_logprobs < 0 || (wanted.faulty && wanted.tokens.empty())) {
    REQUIRE(job.prompt_scores.empty());
    return;
  }
  REQUIRE_FALSE(job.prompt_scores.empty());
  REQUIRE(job.prompt_scores.front().token == job.request.prompt.front());
  REQUIRE(std::isnan(job.prompt_scores.front().logprob));
  require_scores(std::span(job.prompt_scores).subspan(1), wanted.prompt_scores);
}

/// What came of a job that was cut short: the begin of its answer, with the scores where asked for, and less than all.
inline void require_begin_of_answer(const Job& job, const sim::SimulatedRingOptions& ring) {
  const sched::GenerateRequest& request = job.request;
  if (request.pooling != sched::Pooling::kNone) {
    REQUIRE(job.tokens.empty());
    REQUIRE(job.pooled.empty());
    return;
  }
  auto [wanted, finish] = expected_answer(job, ring);
  REQUIRE(job.tokens.size() <= wanted.tokens.size());
  REQUIRE(std::equal(job.tokens.begin(), job.tokens.end(), wanted.tokens.begin()));
  const bool may_be_all = wanted.faulty || request.max_tokens == 0;  // what would have told of the end did not come
  REQUIRE((may_be_all || job.tokens.size() < wanted.tokens.size()));
  wanted.scores.resize(request.sampling.top_logprobs >= 0 ? job.tokens.size() : 0);
  require_scores(job.scores, wanted.scores);
  const bool scores_prompt = request.prompt_top_logprobs >= 0 && !job.tokens.empty();
  REQUIRE(job.prompt_scores.size() == (scores_prompt ? request.prompt.size() : 0));
  if (scores_prompt) require_scores(std::span(job.prompt_scores).subspan(1), wanted.prompt_scores);
}

/// Returns whether the job ended with an error that says so.
inline bool failed_with(const Job& job, std::string_view what) {
  return job.error && job.error->message.find(what) != std::string::npos;
}

/// Returns whether the job ended because the queue was full.
inline bool exceeded_queue(const Job& job) {
  return job.error && job.error->code == ErrorCode::kExhausted;
}

/// How the requests of a world may end that are neither answered whole nor left by their clients.
struct Perils {
  std::vector<std::string_view> breaks;  ///< what errors say when the ring breaks
  bool aborts = false;                   ///< somebody ends requests of others
};

inline bool cut_short(const Job& job, const sched::HeadOptions& head, const Perils& perils) {
  if (job.finish == sched::FinishReason::kAbort) return perils.aborts;
  if (!job.error) return false;
  if (exceeded_queue(job)) return head.max_queued < 5 && job.tokens.empty();
  if (job.error->code == ErrorCode::kTimeout) return head.queue_timeout > 0s || head.run_timeout > 0s;
  return std::ranges::any_of(perils.breaks, [&](std::string_view what) { return failed_with(job, what); });
}

/// Requires that a job was refused: it can never run, or came while there was no ring.
inline void require_refusal(const Job& job, const sim::SimulatedRingOptions& ring, const Perils& perils) {
  REQUIRE(job.tokens.empty());
  if (job.error->code == ErrorCode::kUnavailable) {
    REQUIRE_FALSE(perils.breaks.empty());
  } else {
    REQUIRE(job.error->code == ErrorCode::kInvalidArgument);
    REQUIRE_FALSE(admissible(job, ring));
  }
}

/// The whole answer, once; the begin of it, if its client left or something happened to it that may happen; a refusal.
inline void require_right_end(const Job& job, const sim::SimulatedRingOptions& ring, const Perils& perils = {}) {
  REQUIRE(job.endings == (job.left || job.refused ? 0 : 1));
  if (job.refused) return require_refusal(job, ring, perils);
  REQUIRE((job.left || job.error.has_value() != job.finish.has_value()));
  REQUIRE(admissible(job, ring));
  if (job.left || cut_short(job, ring.head, perils)) {
    require_begin_of_answer(job, ring);
  } else {
    require_whole_answer(job, ring);
  }
}

}  // namespace millrace::test
