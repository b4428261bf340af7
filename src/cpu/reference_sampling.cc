#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "cpu/reference.h"

namespace millrace::reference {
namespace {

constexpr double kBanned = -std::numeric_limits<double>::infinity();

std::vector<double> penalised(std::span<const float> logits, const tensor::SampleSpec& spec) {
  const tensor::SamplingParams& params = *spec.params;
  std::vector<double> values(logits.begin(), logits.end());
  const auto known = [&](TokenId token) { return token >= 0 && static_cast<size_t>(token) < values.size(); };
  for (size_t id = 0; id < values.size() && !spec.allowed.empty(); ++id) {
    const bool is_allowed = id / 32 < spec.allowed.size() && ((spec.allowed[id / 32] >> (id % 32)) & 1) != 0;
    if (!is_allowed) values[id] = kBanned;
  }
  if (spec.output_count < params.min_tokens) {
    for (const TokenId token : params.stop_token_ids) {
      if (known(token)) values[static_cast<size_t>(token)] = kBanned;
    }
  }
  for (const auto& [token, bias] : params.logit_bias) {
    if (known(token)) values[static_cast<size_t>(token)] += double{bias};
  }
  std::map<TokenId, int> output_count;  // 0 for tokens of the prompt alone
  for (const TokenId token : spec.prompt) output_count[token];
  for (const TokenId token : spec.output) ++output_count[token];
  for (const auto& [token, count] : output_count) {
    if (!known(token)) continue;
    double& value = values[static_cast<size_t>(token)];
    value = value > 0 ? value / double{params.repetition_penalty} : value * double{params.repetition_penalty};
    value -= double{params.frequency_penalty} * count;
    if (count > 0) value -= double{params.presence_penalty};
  }
  return values;
}

/// Returns the probabilities of the values that are not banned.
std::vector<double> softmax(const std::vector<double>& values) {
  const double max = *std::max_element(values.begin(), values.end());
  std::vector<double> probabilities;
  double sum = 0.0;
  for (const double value : values) {
    probabilities.push_back(std::exp(value - max));
    sum += probabilities.back();
  }
  for (double& p : probabilities) p /= sum;
  return probabilities;
}

void apply_top_k(std::vector<double>& values, int32_t top_k) {
  if (top_k <= 0 || static_cast<size_t>(top_k) >= values.size()) return;
  std::vector<double> sorted = values;
  std::sort(sorted.rbegin(), sorted.rend());
  for (double& value : values) {
    if (value < sorted[static_cast<size_t>(top_k - 1)]) value = kBanned;
  }
}

void apply_top_p(std::vector<double>& values, double top_p) {
  if (top_p >= 1.0) return;
  const std::vector<double> probabilities = softmax(values);
  std::vector<size_t> order(values.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return probabilities[a] != probabilities[b] ? probabilities[a] > probabilities[b] : a < b;
  });
  double before = 0.0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && before >= top_p) values[order[i]] = kBanned;
    before += probabilities[order[i]];
  }
}

}  // namespace

std::vector<std::pair<TokenId, double>> sampling_distribution(std::span<const float> logits,
                                                              const tensor::SampleSpec& spec) {
  const tensor::SamplingParams& params = *spec.params;
  std::vector<double> values = penalised(logits, spec);
  if (params.greedy()) {
    const auto best = std::max_element(values.begin(), values.end());
    return {{static_cast<TokenId>(best - values.begin()), 1.0}};
  }
  for (double& value : values) value /= double{params.temperature};
  const std::vector<double> full = softmax(values);
  const double best = *std::max_element(full.begin(), full.end());
  for (size_t i = 0; i < values.size(); ++i) {
    if (full[i] < double{params.min_p} * best) values[i] = kBanned;
  }
  apply_top_k(values, params.top_k);
  apply_top_p(values, params.top_p);
  const std::vector<double> final = softmax(values);
  std::vector<std::pair<TokenId, double>> distribution;
  for (size_t i = 0; i < final.size(); ++i) {
    if (final[i] > 0.0) distribution.emplace_back(static_cast<TokenId>(i), final[i]);
  }
  return distribution;
}

std::vector<double> log_softmax(std::span<const float> logits) {
  double max = kBanned;
  for (const float logit : logits) max = std::max(max, double{logit});
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(double{logit} - max);
  std::vector<double> result;
  for (const float logit : logits) result.push_back(double{logit} - max - std::log(sum));
  return result;
}

}  // namespace millrace::reference
