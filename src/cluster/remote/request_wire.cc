#include "cluster/remote/request_wire.h"

namespace millrace::cluster::remote {
namespace {

using comm::ByteReader;
using comm::ByteWriter;
using Pairs = std::vector<std::pair<TokenId, float>>;

void put_pairs(ByteWriter& out, const Pairs& pairs) {
  out.put(static_cast<uint32_t>(pairs.size()));
  for (const auto& [token, value] : pairs) {
    out.put(token);
    out.put(value);
  }
}
void get_pairs(ByteReader& in, Pairs& pairs) {
  pairs.resize(in.get_count(sizeof(TokenId) + sizeof(float)));
  for (auto& [token, value] : pairs) {
    token = in.get<TokenId>();
    value = in.get<float>();
  }
}

void put_tokens(ByteWriter& out, const std::vector<TokenId>& tokens) {
  out.put_array(std::span(tokens));
}

// Structured bindings name every member, so that a new one does not compile before it travels.
void put(ByteWriter& out, const tensor::SamplingParams& params) {
  const auto& [temperature, top_p, min_p, top_k, repetition, frequency, presence, seed, bias, top_logprobs, min_tokens,
               stop_tokens] = params;
  out.put(temperature);
  out.put(top_p);
  out.put(min_p);
  out.put(top_k);
  out.put(repetition);
  out.put(frequency);
  out.put(presence);
  out.put(seed);
  put_pairs(out, bias);
  out.put(top_logprobs);
  out.put(min_tokens);
  put_tokens(out, stop_tokens);
}
void get(ByteReader& in, tensor::SamplingParams& params) {
  auto& [temperature, top_p, min_p, top_k, repetition, frequency, presence, seed, bias, top_logprobs, min_tokens,
         stop_tokens] = params;
  temperature = in.get<float>();
  top_p = in.get<float>();
  min_p = in.get<float>();
  top_k = in.get<int32_t>();
  repetition = in.get<float>();
  frequency = in.get<float>();
  presence = in.get<float>();
  seed = in.get<uint64_t>();
  get_pairs(in, bias);
  top_logprobs = in.get<int32_t>();
  min_tokens = in.get<uint32_t>();
  stop_tokens = in.get_array<TokenId>();
}

void put(ByteWriter& out, const sched::ReasoningLimit& limit) {
  const auto& [max_tokens, begins_inside, start, end, early_end, end_tokens, vocabulary] = limit;
  (void)vocabulary;
  out.put(max_tokens);
  out.put(begins_inside);
  for (const std::string* text : {&start, &end, &early_end}) out.put_string(*text);
  put_tokens(out, end_tokens);
}
void get(ByteReader& in, sched::ReasoningLimit& limit) {
  limit.max_tokens = in.get<uint32_t>();
  limit.begins_inside = in.get_bool();
  for (std::string* text : {&limit.start, &limit.end, &limit.early_end}) *text = in.get_string();
  limit.end_tokens = in.get_array<TokenId>();
}

void put(ByteWriter& out, const std::vector<tensor::TokenLogprobs>& all) {
  out.put(static_cast<uint32_t>(all.size()));
  for (const auto& [token, logprob, rank, top] : all) {
    out.put(token);
    out.put(logprob);
    out.put(rank);
    put_pairs(out, top);
  }
}
void get(ByteReader& in, std::vector<tensor::TokenLogprobs>& all) {
  all.resize(in.get_count(sizeof(TokenId) + sizeof(float) + sizeof(int32_t) + sizeof(uint32_t)));
  for (auto& [token, logprob, rank, top] : all) {
    token = in.get<TokenId>();
    logprob = in.get<float>();
    rank = in.get<int32_t>();
    get_pairs(in, top);
  }
}

}  // namespace

void put(ByteWriter& out, const sched::GenerateRequest& request) {
  const auto& [id, prompt, sampling, max_tokens, prompt_top_logprobs, pooling, second_text, priority, cache_salt,
               grammar, grammar_source, reasoning_limit, prediction, ring, waited_us, reports_start] = request;
  (void)grammar;
  out.put_string(id);
  put_tokens(out, prompt);
  put(out, sampling);
  out.put(max_tokens);
  out.put(prompt_top_logprobs);
  out.put(pooling);
  out.put(second_text);
  out.put(priority);
  out.put_string(cache_salt);
  out.put(grammar_source != nullptr);
  if (grammar_source) out.put_string(*grammar_source);
  out.put(reasoning_limit != nullptr);
  if (reasoning_limit) put(out, *reasoning_limit);
  put_tokens(out, prediction);
  out.put(ring.has_value());
  out.put(ring.value_or(0));
  out.put(waited_us);
  out.put(reports_start);
}

void get(ByteReader& in, sched::GenerateRequest& request) {
  request.id = in.get_string();
  request.prompt = in.get_array<TokenId>();
  get(in, request.sampling);
  request.max_tokens = in.get<uint32_t>();
  request.prompt_top_logprobs = in.get<int32_t>();
  get_enum(in, request.pooling, sched::Pooling::kMean);
  request.second_text = in.get<uint32_t>();
  request.priority = in.get<int32_t>();
  request.cache_salt = in.get_string();
  if (in.get_bool()) request.grammar_source = std::make_shared<const std::string>(in.get_string());
  if (in.get_bool()) {
    sched::ReasoningLimit limit;
    get(in, limit);
    request.reasoning_limit = std::make_shared<const sched::ReasoningLimit>(std::move(limit));
  }
  request.prediction = in.get_array<TokenId>();
  const bool has_ring = in.get_bool();
  const auto ring = in.get<uint32_t>();
  if (has_ring) request.ring = ring;
  request.waited_us = in.get<int64_t>();
  request.reports_start = in.get_bool();
}

void put(ByteWriter& out, const Error& error) {
  out.put(static_cast<uint8_t>(error.code));
  out.put_string(error.message);
}
void get(ByteReader& in, Error& error) {
  get_enum(in, error.code, ErrorCode::kInternal);
  error.message = in.get_string();
}

void put(ByteWriter& out, const sched::GenerateEvent& event) {
  const auto& [tokens, logprobs, prompt_logprobs, pooled, cached_tokens, accepted, rejected, finish, error, is_returned,
               timings] = event;
  put_tokens(out, tokens);
  put(out, logprobs);
  put(out, prompt_logprobs);
  out.put_array(std::span(pooled));
  for (const uint32_t count : {cached_tokens, accepted, rejected}) out.put(count);
  out.put(finish.has_value());
  out.put(finish.value_or(sched::FinishReason::kStop));
  out.put(error.has_value());
  if (error) put(out, *error);
  out.put(is_returned);
  out.put(timings.queued_us);
  out.put(timings.prefill_us);
}

void get(ByteReader& in, sched::GenerateEvent& event) {
  event.tokens = in.get_array<TokenId>();
  get(in, event.logprobs);
  get(in, event.prompt_logprobs);
  event.pooled = in.get_array<float>();
  for (uint32_t* count : {&event.cached_tokens, &event.accepted_predictions, &event.rejected_predictions})
    *count = in.get<uint32_t>();
  const bool has_finish = in.get_bool();
  sched::FinishReason finish = sched::FinishReason::kStop;
  get_enum(in, finish, sched::FinishReason::kAbort);
  if (has_finish) event.finish = finish;
  if (in.get_bool()) {
    Error error;
    get(in, error);
    event.error = std::move(error);
  }
  event.is_returned = in.get_bool();
  event.timings.queued_us = in.get<int64_t>();
  event.timings.prefill_us = in.get<int64_t>();
}

}  // namespace millrace::cluster::remote
