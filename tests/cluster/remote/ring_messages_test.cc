#include "cluster/remote/ring_messages.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "sched/steps/step_messages.h"
#include "support/fake_ring_view.h"

using namespace millrace;
using namespace millrace::cluster::remote;

namespace {

/// Returns a request whose members all differ from their defaults.
sched::GenerateRequest full_request() {
  sched::GenerateRequest request;
  request.id = "chatcmpl-7";
  request.prompt = {5, 0, 151'935};
  request.sampling = {.temperature = 0.25f,
                      .top_p = 0.5f,
                      .min_p = 0.125f,
                      .top_k = 40,
                      .repetition_penalty = 1.5f,
                      .frequency_penalty = -0.5f,
                      .presence_penalty = 0.75f,
                      .seed = uint64_t{1} << 63,
                      .logit_bias = {{3, -100.0f}, {9, 1.5f}},
                      .top_logprobs = 20,
                      .min_tokens = 4,
                      .stop_token_ids = {2, 7}};
  request.max_tokens = 99;
  request.prompt_top_logprobs = 5;
  request.pooling = sched::Pooling::kMean;
  request.second_text = 2;
  request.priority = -3;
  request.cache_salt = "tenant";
  request.grammar_source = std::make_shared<const std::string>(R"({"format":"ä"})");
  request.reasoning_limit = std::make_shared<const sched::ReasoningLimit>(sched::ReasoningLimit{.max_tokens = 17,
                                                                                                .begins_inside = true,
                                                                                                .start = "<think>",
                                                                                                .end = "</think>",
                                                                                                .early_end = "end",
                                                                                                .end_tokens = {8, 9},
                                                                                                .vocabulary = {}});
  request.prediction = {1, 2, 3};
  request.ring = 4;
  request.waited_us = -5;
  request.reports_start = true;
  return request;
}

sched::GenerateEvent full_event() {
  sched::GenerateEvent event;
  event.tokens = {3, 4};
  event.logprobs = {{.token = 3, .logprob = -0.5f, .rank = 2, .top = {{7, -0.25f}, {3, -0.5f}}}, {.token = 4}};
  event.prompt_logprobs = {{.token = 1, .logprob = std::nanf(""), .rank = 1, .top = {}}};
  event.pooled = {0.5f, -1.0f};
  event.cached_tokens = 64;
  event.accepted_predictions = 5;
  event.rejected_predictions = 6;
  event.finish = sched::FinishReason::kLength;
  event.error = Error{ErrorCode::kExhausted, "full"};
  event.is_returned = true;
  event.timings = {.queued_us = 11, .prefill_us = 12};
  return event;
}

RingState full_state() {
  RingState state;
  state.status = {.ready = true,
                  .paused = true,
                  .reason = "reason",
                  .degraded = "degraded",
                  .running = 1,
                  .waiting = 2,
                  .free_pages = 3,
                  .total_pages = 4,
                  .page_size = 5,
                  .cached_pages = 6,
                  .host_pages = 7,
                  .cached_host_pages = 8,
                  .windows = {{.window = 512, .free_pages = 9, .total_pages = 10}},
                  .cache = {.device_hit_pages = 11, .unpersisted_pages = 12},
                  .preemptions = 13,
                  .drafts = {.drafted = {1, 2, 3}, .accepted = {4, 5, 6}}};
  state.model = {.architecture = "LlamaForCausalLM",
                 .context_length = 14,
                 .vocab_size = 15,
                 .hidden_size = 16,
                 .generates = false,
                 .parameter_count = 17,
                 .stage_count = 18,
                 .rank_count = 19,
                 .kv_token_capacity = 20,
                 .concurrency = {{21, 22, sched::ConcurrencyLimit::kStates}, {23, 24}}};
  return state;
}

/// Returns the statistics of two stages with two ranks each, and two records.
RingFigures full_figures() {
  test::FakeRingView ring(2, 2);
  ring.record_plans(2);
  RingFigures figures{
      .rank_count = 2, .as_of_ns = 21, .snapshot = ring.snapshot(0), .costs = {}, .records = ring.records_after(0)};
  figures.snapshot.in_flight = 1;
  figures.snapshot.epochs = 22;
  figures.snapshot.steps = {.with_rows = 23, .without_rows = 24, .newest = 25, .newest_with_rows = 26, .in_flight = 27};
  figures.snapshot.recent.stages[1].wait[sched::WaitCause::kOverhead] = 27;
  figures.snapshot.recent.stages[1].rank_busy_ns = {28};
  figures.snapshot.since_start.links[2] = {.messages = 29, .bytes = 30, .timed = 31, .latency_ns = 32};
  figures.snapshot.latency_counts[3] = 33;
  figures.snapshot.token_counts[4] = 34;
  figures.snapshot.occupancy_ns[2] = 35;
  figures.costs = {.stages = {{.fixed_us = 1.5}, {.per_context_us = 2.5}},
                   .fallbacks = {StageId(1)},
                   .relative_errors = {0.25, 0.5},
                   .page_size = 36,
                   .context_length = 37,
                   .contention = {.other_by_other = 0.75}};
  return figures;
}

template <class T>
T travel(const T& message) {
  return std::get<T>(decode(encode(message)).value());
}

std::vector<Content> all_messages() {
  return {RingHello{
              .ring = 3,
              .facts = {.config = {1, 2}, .vocabulary = {3, 4}, .arithmetic = "bf16", .experts = {}, .page_size = 64}},
          RingWelcome{},
          SubmitRequest{.number = 7, .request = full_request()},
          AbortRequest{8},
          RequestEvent{.number = 9, .event = full_event()},
          PauseRing{sched::PauseMode::kAbort},
          ResumeRing{},
          ReturnWaiting{"draining"},
          RebuildRing{"restart"},
          FlushRing{.number = 10, .timeout_us = 11},
          StepNews{sched::encode(sched::StepReached{.epoch = 7, .step = 25})},
          RingFlushed{.number = 12, .error = Error{ErrorCode::kConflict, "busy"}},
          full_state(),
          full_figures(),
          RingMetrics{"b 2\n"}};
}

}  // namespace

TEST_CASE("all of a request travels but its grammar") {
  const sched::GenerateRequest sent = full_request();
  const SubmitRequest received = travel(SubmitRequest{.number = 7, .request = sent});
  const sched::GenerateRequest& got = received.request;
  REQUIRE(received.number == 7);
  REQUIRE(got.id == sent.id);
  REQUIRE(got.prompt == sent.prompt);
  const tensor::SamplingParams& params = got.sampling;
  REQUIRE(params.temperature == 0.25f);
  REQUIRE(params.top_p == 0.5f);
  REQUIRE(params.min_p == 0.125f);
  REQUIRE(params.top_k == 40);
  REQUIRE(params.repetition_penalty == 1.5f);
  REQUIRE(params.frequency_penalty == -0.5f);
  REQUIRE(params.presence_penalty == 0.75f);
  REQUIRE(params.seed == uint64_t{1} << 63);
  REQUIRE(params.logit_bias == sent.sampling.logit_bias);
  REQUIRE(params.top_logprobs == 20);
  REQUIRE(params.min_tokens == 4);
  REQUIRE(params.stop_token_ids == sent.sampling.stop_token_ids);
  REQUIRE(got.max_tokens == 99);
  REQUIRE(got.prompt_top_logprobs == 5);
  REQUIRE(got.pooling == sched::Pooling::kMean);
  REQUIRE(got.second_text == 2);
  REQUIRE(got.priority == -3);
  REQUIRE(got.cache_salt == "tenant");
  REQUIRE(*got.grammar_source == *sent.grammar_source);
  REQUIRE(got.reasoning_limit->max_tokens == 17);
  REQUIRE(got.reasoning_limit->begins_inside);
  REQUIRE(got.reasoning_limit->start == "<think>");
  REQUIRE(got.reasoning_limit->end == "</think>");
  REQUIRE(got.reasoning_limit->early_end == "end");
  REQUIRE(got.reasoning_limit->end_tokens == std::vector<TokenId>{8, 9});
  REQUIRE(got.prediction == sent.prediction);
  REQUIRE(got.ring == 4u);
  REQUIRE(got.waited_us == -5);
  REQUIRE(got.reports_start);
}

TEST_CASE("a request without optional parts travels without them") {
  const sched::GenerateRequest got = travel(SubmitRequest{.number = 1, .request = {}}).request;
  REQUIRE(got.grammar_source == nullptr);
  REQUIRE(got.reasoning_limit == nullptr);
  REQUIRE_FALSE(got.ring);
  REQUIRE(got.sampling.top_logprobs == -1);
}

TEST_CASE("all of an event travels") {
  const sched::GenerateEvent sent = full_event();
  const sched::GenerateEvent got = travel(RequestEvent{.number = 9, .event = sent}).event;
  REQUIRE(got.tokens == sent.tokens);
  REQUIRE(got.logprobs.size() == 2);
  REQUIRE(got.logprobs[0].logprob == -0.5f);
  REQUIRE(got.logprobs[0].rank == 2);
  REQUIRE(got.logprobs[0].top == sent.logprobs[0].top);
  REQUIRE(got.logprobs[1].token == 4);
  REQUIRE(std::isnan(got.prompt_logprobs.at(0).logprob));
  REQUIRE(got.pooled == sent.pooled);
  REQUIRE(got.cached_tokens == 64);
  REQUIRE(got.accepted_predictions == 5);
  REQUIRE(got.rejected_predictions == 6);
  REQUIRE(got.finish == sched::FinishReason::kLength);
  REQUIRE(got.error->code == ErrorCode::kExhausted);
  REQUIRE(got.error->message == "full");
  REQUIRE(got.is_returned);
  REQUIRE(got.timings.queued_us == 11);
  REQUIRE(got.timings.prefill_us == 12);
}

TEST_CASE("every message of a ring has one encoding") {
  for (const Content& message : all_messages()) {
    const auto bytes = encode(message);
    const auto decoded = decode(bytes);
    REQUIRE(decoded.has_value());
    REQUIRE(decoded->index() == message.index());
    REQUIRE(encode(*decoded) == bytes);
  }
}

TEST_CASE("all statistics of a ring travel") {
  const RingFigures got = travel(full_figures());
  REQUIRE(got.rank_count == 2);
  REQUIRE(got.as_of_ns == 21);
  REQUIRE(got.snapshot.window == 2);
  REQUIRE(got.snapshot.in_flight == 1);
  REQUIRE(got.snapshot.epochs == 22);
  REQUIRE(got.snapshot.steps.newest_with_rows == 26);
  REQUIRE(got.snapshot.steps.in_flight == 27);
  REQUIRE(got.snapshot.since_start.plans == 2);
  REQUIRE(got.snapshot.since_start.links[2].latency_ns == 32);
  REQUIRE(got.snapshot.recent.stages[1].wait[sched::WaitCause::kOverhead] == 27);
  REQUIRE(got.snapshot.recent.stages[1].rank_busy_ns == std::vector<int64_t>{28});
  REQUIRE(got.snapshot.latency_counts[3] == 33);
  REQUIRE(got.snapshot.token_counts[4] == 34);
  REQUIRE(got.snapshot.occupancy_ns == std::vector<int64_t>{0, 0, 35});
  REQUIRE(got.costs.stages[1].per_context_us == 2.5);
  REQUIRE(got.costs.fallbacks == std::vector<StageId>{StageId(1)});
  REQUIRE(got.costs.relative_errors == std::vector<double>{0.25, 0.5});
  REQUIRE(got.costs.context_length == 37);
  REQUIRE(got.costs.contention.other_by_other == 0.75);
  REQUIRE(got.records.size() == 2);
  const sched::PlanRecord& record = got.records[1];
  REQUIRE(record.number == 2);
  REQUIRE(record.plan == PlanId(102));
  REQUIRE(record.epoch == RingEpoch(3));
  REQUIRE(record.sent_ns == 5);
  REQUIRE(record.prefill_rows == 7);
  REQUIRE((record.starved && !record.after_pause));
  REQUIRE(record.stages[1].end_ns == 2);
  REQUIRE(record.stages[1].wait[sched::WaitCause::kHeadLate] == 9);
  REQUIRE(record.stages[1].ranks[0].end_ns == 11);
}

TEST_CASE("statistics whose parts disagree are refused") {
  const std::vector<std::function<void(RingFigures&)>> changes = {
      [](RingFigures& figures) { figures.rank_count = 1; },
      [](RingFigures& figures) { figures.rank_count = 1000; },
      [](RingFigures& figures) { figures.snapshot.window = 3; },
      [](RingFigures& figures) { figures.snapshot.occupancy_ns.clear(); },
      [](RingFigures& figures) { figures.snapshot.stage_count = 1; },
      [](RingFigures& figures) { figures.snapshot.profile.links.pop_back(); },
      [](RingFigures& figures) { figures.snapshot.recent.stages[0].rank_busy_ns = {1, 2}; },
      [](RingFigures& figures) { figures.costs.stages.pop_back(); },
      [](RingFigures& figures) { figures.records[1].stages.pop_back(); },
      [](RingFigures& figures) { figures.records[0].stages[0].ranks.resize(2); },
      [](RingFigures& figures) { figures.records[1].number = 1; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    INFO(i);
    RingFigures figures = full_figures();
    changes[i](figures);
    const auto decoded = decode(encode(figures));
    REQUIRE(decoded.has_error());
    REQUIRE(decoded.error().code == ErrorCode::kData);
  }
}

TEST_CASE("torn messages of a ring are refused and altered ones read") {
  for (const Content& message : all_messages()) {
    const auto bytes = encode(message);
    for (size_t size = 0; size < bytes.size(); ++size) {
      const auto torn = decode(std::span(bytes).first(size));
      REQUIRE(torn.has_error());
      REQUIRE(torn.error().code == ErrorCode::kData);
    }
    for (size_t at = 0; at < bytes.size(); ++at) {
      auto altered = bytes;
      altered[at] ^= std::byte{0xff};
      const auto decoded = decode(altered);
      if (decoded.has_error()) REQUIRE(decoded.error().code == ErrorCode::kData);
    }
  }
}

TEST_CASE("rings that differ are told apart by name") {
  const RingFacts front{.config = {1, 2}, .vocabulary = {3, 4}, .arithmetic = "bf16", .experts = {}, .page_size = 64};
  REQUIRE(difference(front, front).empty());
  const auto differs = [&front](auto change) {
    RingFacts ring = front;
    change(ring);
    return difference(ring, front);
  };
  REQUIRE(differs([](RingFacts& ring) { ring.protocol = 99; }).find("protocol 99") != std::string::npos);
  REQUIRE(differs([](RingFacts& ring) { ring.config.low = 9; }).find("model") != std::string::npos);
  REQUIRE(differs([](RingFacts& ring) { ring.vocabulary.high = 9; }).find("tokenizer") != std::string::npos);
  REQUIRE(differs([](RingFacts& ring) { ring.arithmetic = "f32"; }).find("f32") != std::string::npos);
  REQUIRE(differs([](RingFacts& ring) { ring.experts = "experts among 4"; }).find("shares experts among 4") !=
          std::string::npos);
  REQUIRE(differs([](RingFacts& ring) { ring.page_size = 16; }).find("--page-size is 16") != std::string::npos);
}
