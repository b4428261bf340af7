#include "sim/simulated_model.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/hash.h"
#include "sched/scheduler/scheduler.h"

namespace millrace::sim {
namespace {

/// Returns a hash of all sampling parameters of a request.
uint64_t digest(const tensor::SamplingParams& params) {
  uint64_t digest = SimulatedModel::mix(params.seed, params.min_tokens);
  for (const float value : {params.temperature, params.top_p, params.min_p, params.repetition_penalty,
                            params.frequency_penalty, params.presence_penalty}) {
    digest = SimulatedModel::mix(digest, std::bit_cast<uint32_t>(value));
  }
  digest = SimulatedModel::mix(digest, static_cast<uint64_t>(params.top_k));
  for (const auto& [token, bias] : params.logit_bias) {
    digest =
        SimulatedModel::mix(SimulatedModel::mix(digest, static_cast<uint64_t>(token)), std::bit_cast<uint32_t>(bias));
  }
  for (const TokenId token : params.stop_token_ids) digest = SimulatedModel::mix(digest, static_cast<uint64_t>(token));
  return digest;
}

}  // namespace

uint64_t SimulatedModel::mix(uint64_t a, uint64_t b) {
  return mix_bits((a ^ (b * 0x9E3779B97F4A7C15ull)) + 0xD1B54A32D192ED03ull);
}

uint64_t SimulatedModel::key_value(int32_t layer, uint64_t hidden) {
  return mix(hidden, static_cast<uint64_t>(layer) + 1);
}

uint64_t SimulatedModel::attend(uint64_t context, uint64_t key_value) {
  return mix(context, key_value);
}

uint64_t SimulatedModel::embed(TokenId token) {
  return mix(static_cast<uint64_t>(token), 17);
}

TokenId SimulatedModel::draw(uint64_t hidden, const tensor::SampleSpec& spec) const {
  uint64_t drawn = mix(mix(hidden, digest(*spec.params)), spec.position);
  drawn = mix(drawn, spec.output_count);
  for (const TokenId token : spec.prompt) drawn = mix(drawn, static_cast<uint64_t>(token));
  drawn = mix(drawn, spec.output.size());
  for (const TokenId token : spec.output) drawn = mix(drawn, static_cast<uint64_t>(token));
  if (spec.allowed.empty()) return static_cast<TokenId>(drawn % std::min(vocab_size, distinct_tokens));
  std::vector<TokenId> members;
  for (TokenId token = 0; token < static_cast<TokenId>(vocab_size); ++token) {
    if ((spec.allowed[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0) members.push_back(token);
  }
  return members.at(drawn % std::min<size_t>(members.size(), distinct_tokens));
}

bool SimulatedModel::faulty(uint64_t hidden) const {
  return faulty_one_in > 0 && mix(hidden, 5) % faulty_one_in == 0;
}

tensor::TokenLogprobs SimulatedModel::score(uint64_t hidden, TokenId token, int32_t top) const {
  const uint64_t found = mix(hidden, static_cast<uint64_t>(token));
  tensor::TokenLogprobs score{
      token, -static_cast<float>(found % 4096) / 256, static_cast<int32_t>(found % vocab_size) + 1, {}};
  for (int32_t rank = 0; rank < top; ++rank) {
    const uint64_t other = mix(hidden, ~static_cast<uint64_t>(rank));
    score.top.emplace_back(static_cast<TokenId>(other % vocab_size), -static_cast<float>(rank));
  }
  return score;
}

uint64_t SimulatedModel::pool(uint64_t pooled, uint64_t hidden) {
  return mix(pooled, hidden);
}

std::vector<float> SimulatedModel::pooled_vector(uint64_t pooled, uint64_t row_count) {
  std::vector<float> vector;
  for (uint64_t i = 0; i < kPooledSize; ++i) {
    vector.push_back(static_cast<float>(mix(mix(pooled, row_count), i) >> 40));
  }
  return vector;
}

std::vector<float> SimulatedModel::embed_prompt(std::span<const TokenId> prompt, sched::Pooling pooling) const {
  std::vector<Context> contexts(static_cast<size_t>(layer_count));
  std::vector<uint64_t> rows;
  for (const TokenId token : prompt) rows.push_back(next_row(token, contexts));
  std::span<const uint64_t> pooled(rows);
  if (pooling == sched::Pooling::kFirst) pooled = pooled.first(1);
  if (pooling == sched::Pooling::kLast) pooled = pooled.last(1);
  uint64_t sum = 0;
  for (const uint64_t row : pooled) sum = pool(sum, row);
  return faulty(sum) ? std::vector<float>() : pooled_vector(sum, pooled.size());
}

uint64_t SimulatedModel::next_row(TokenId token, std::vector<Context>& contexts) const {
  uint64_t hidden = embed(token);
  for (int32_t layer = 0; layer < layer_count; ++layer) {
    Context& context = contexts[static_cast<size_t>(layer)];
    const uint64_t own = key_value(layer, hidden);
    if (window_of(layer) == 0) {
      context.running = attend(context.running, own);
    } else {
      context.key_values.push_back(own);
      context.running = 0;
      for (size_t at = first_visible(context.key_values.size() - 1, layer); at < context.key_values.size(); ++at) {
        context.running = attend(context.running, context.key_values[at]);
      }
    }
    hidden = mix(hidden, context.running);
  }
  return hidden;
}

std::vector<WindowSpec> SimulatedModel::windows() const {
  std::vector<WindowSpec> all;
  if (window > 0) all.push_back({.window = window});
  if (state_one_in > 0) all.push_back({.kind = GroupKind::kState});
  return all;
}

uint32_t SimulatedModel::group_of(int32_t layer) const {
  if (keeps_state(layer)) return window > 0 ? 2 : 1;
  return window_of(layer) > 0 ? 1 : 0;
}

uint32_t SimulatedModel::page_values(uint32_t group, uint32_t page_size) const {
  return group > 0 && windows()[group - 1].kind == GroupKind::kState ? 1 : page_size;
}

size_t SimulatedModel::first_visible(size_t position, int32_t layer) const {
  const uint32_t seen = window_of(layer);
  return seen == 0 ? 0 : position + 1 - std::min<size_t>(position + 1, seen);
}

size_t SimulatedModel::layers_in(uint32_t group, int32_t begin, int32_t end) const {
  size_t count = 0;
  for (int32_t layer = begin; layer < end; ++layer) count += group_of(layer) == group ? 1 : 0;
  return count;
}

SimulatedModel::Continuation SimulatedModel::generate(std::span<const TokenId> prompt, size_t count,
                                                      const tensor::SamplingParams& sampling, int32_t prompt_top,
                                                      const std::shared_ptr<const grammar::Grammar>& grammar,
                                                      const std::shared_ptr<const sched::ReasoningLimit>& limit) const {
  std::optional<grammar::Matcher> matcher;
  if (grammar != nullptr) matcher.emplace(grammar, sched::samples_end_token(*grammar, sampling));
  std::optional<sched::ReasoningBudget> budget;
  if (limit != nullptr) budget.emplace(limit);
  std::vector<Context> contexts(static_cast<size_t>(layer_count));
  uint64_t hidden = 0;
  const auto feed = [&](TokenId token) { hidden = next_row(token, contexts); };
  Continuation found;
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (i > 0) found.prompt_scores.push_back(score(hidden, prompt[i], prompt_top));
    feed(prompt[i]);
  }
  while (found.tokens.size() < count) {
    found.faulty = faulty(hidden);
    if (found.faulty) break;
    tensor::SampleSpec spec{
        &sampling, prompt.size() + found.tokens.size(), static_cast<uint32_t>(found.tokens.size()), {}, {}};
    if (sampling.needs_history()) {
      spec.prompt = prompt;
      spec.output = found.tokens;
    }
    const auto allowed = matcher ? matcher->allowed() : nullptr;
    const auto forced = budget ? budget->forced_mask(allowed.get()) : nullptr;
    if (allowed != nullptr) spec.allowed = allowed->words();
    if (forced != nullptr) spec.allowed = forced->words();
    found.tokens.push_back(draw(hidden, spec));
    found.scores.push_back(score(hidden, found.tokens.back(), sampling.top_logprobs));
    feed(found.tokens.back());
    if (budget) budget->append(found.tokens.back());
    if (!matcher) continue;
    CHECK(matcher->advance(found.tokens.back()), "token {} is not allowed", found.tokens.back());
    found.complete = matcher->must_end();
    if (found.complete) break;
  }
  return found;
}

}  // namespace millrace::sim
