#include "cluster/remote/ring_messages.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "sched/steps/step_messages.h"

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
                 .kv_token_capacity = 20};
  return state;
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
          RingMetrics{.ring = "a 1\n", .node = "b 2\n"}};
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
