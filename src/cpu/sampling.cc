#include "cpu/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/check.h"

namespace millrace::cpu {
namespace {

using tensor::LogitFault;
using tensor::SampleSpec;
using tensor::SamplingParams;

bool in_vocab(TokenId token, size_t vocab) {
  return token >= 0 && static_cast<size_t>(token) < vocab;
}

bool changes_logits(const SampleSpec& spec) {
  const SamplingParams& params = *spec.params;
  return !spec.allowed.empty() || params.needs_history() || !params.logit_bias.empty() ||
         (spec.output_count < params.min_tokens && !params.stop_token_ids.empty());
}

/// Forbids the ids that the mask lacks.
void apply_mask(std::span<const uint32_t> allowed, std::span<float> logits) {
  constexpr size_t kBits = 32;
  constexpr float kForbidden = -std::numeric_limits<float>::infinity();
  for (size_t begin = 0; begin < logits.size(); begin += kBits) {
    const uint32_t word = begin / kBits < allowed.size() ? allowed[begin / kBits] : 0;
    const std::span<float> block = logits.subspan(begin, std::min(kBits, logits.size() - begin));
    if (word == 0) {
      std::ranges::fill(block, kForbidden);
    } else if (word != ~0u) {
      for (size_t i = 0; i < block.size(); ++i) {
        if (((word >> i) & 1) == 0) block[i] = kForbidden;
      }
    }
  }
}

void apply_penalties(const SampleSpec& spec, SamplerScratch& scratch) {
  const SamplingParams& params = *spec.params;
  const size_t vocab = scratch.logits.size();
  scratch.counts.resize(vocab, 0);
  // The top bit marks a token as seen, the rest counts it in the output.
  constexpr uint32_t kSeen = 0x80000000u;
  scratch.candidates.clear();
  const auto visit = [&](std::span<const TokenId> tokens, uint32_t increment) {
    for (const TokenId token : tokens) {
      if (!in_vocab(token, vocab)) continue;
      uint32_t& count = scratch.counts[static_cast<size_t>(token)];
      if (count == 0) scratch.candidates.push_back(token);
      count = (count | kSeen) + increment;
    }
  };
  visit(spec.prompt, 0);
  visit(spec.output, 1);
  for (const TokenId token : scratch.candidates) {
    float& logit = scratch.logits[static_cast<size_t>(token)];
    const uint32_t count = std::exchange(scratch.counts[static_cast<size_t>(token)], 0) & ~kSeen;
    logit = logit > 0.0f ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    logit -= params.frequency_penalty * static_cast<float>(count);
    if (count > 0) logit -= params.presence_penalty;
  }
}

/// Returns the logits after mask, min_tokens, bias and penalties, or the given ones when none applies.
std::span<const float> process(std::span<const float> logits, const SampleSpec& spec, SamplerScratch& scratch) {
  if (!changes_logits(spec)) return logits;
  const SamplingParams& params = *spec.params;
  scratch.logits.assign(logits.begin(), logits.end());
  if (!spec.allowed.empty()) apply_mask(spec.allowed, scratch.logits);
  if (spec.output_count < params.min_tokens) {
    for (const TokenId token : params.stop_token_ids) {
      if (in_vocab(token, logits.size())) {
        scratch.logits[static_cast<size_t>(token)] = -std::numeric_limits<float>::infinity();
      }
    }
  }
  for (const auto& [token, bias] : params.logit_bias) {
    if (in_vocab(token, logits.size())) scratch.logits[static_cast<size_t>(token)] += bias;
  }
  if (params.needs_history()) apply_penalties(spec, scratch);
  return scratch.logits;
}

LogitFault fault_of(const LogitExtremes& extremes) {
  if (extremes.has_nan) return LogitFault::kNan;
  if (std::isfinite(extremes.max)) return LogitFault::kNone;
  return extremes.max > 0 ? LogitFault::kInfinity : LogitFault::kAllNegativeInfinity;
}

/// Weighs scratch.candidates relative to the maximum and drops those below min_p.
void weigh(std::span<const float> logits, float max, float factor, float min_p, SamplerScratch& scratch) {
  std::vector<TokenId>& ids = scratch.candidates;
  scratch.weights.clear();
  size_t kept = 0;
  for (const TokenId id : ids) {
    const float weight = std::exp((logits[static_cast<size_t>(id)] - max) * factor);
    if (weight < min_p || weight == 0.0f) continue;
    ids[kept++] = id;
    scratch.weights.push_back(weight);
  }
  ids.resize(kept);
}

/// Keeps the most probable candidates while those before them sum to less than top_p · total. Of equal ones the lower
/// id comes first.
void cut_top_p(float top_p, double total, SamplerScratch& scratch) {
  std::vector<std::pair<float, TokenId>> order;  // descending weight, ascending id
  order.reserve(scratch.candidates.size());
  for (size_t i = 0; i < scratch.candidates.size(); ++i) order.emplace_back(scratch.weights[i], scratch.candidates[i]);
  std::sort(order.begin(), order.end(),
            [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
  double before = 0.0;
  size_t kept = 0;
  for (; kept < order.size() && (kept == 0 || before < static_cast<double>(top_p) * total); ++kept) {
    before += static_cast<double>(order[kept].first);
  }
  order.resize(kept);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  scratch.candidates.clear();
  scratch.weights.clear();
  for (const auto& [weight, id] : order) {
    scratch.candidates.push_back(id);
    scratch.weights.push_back(weight);
  }
}

double sum_of(std::span<const float> weights) {
  double total = 0.0;
  for (const float weight : weights) total += static_cast<double>(weight);
  return total;
}

Candidates listed(const SamplerScratch& scratch) {
  return {.ids = scratch.candidates, .weights = scratch.weights, .total = sum_of(scratch.weights)};
}

/// A histogram of logits by their distance from the maximum.
class NucleusBuckets {
 public:
  static constexpr int kCount = 2048;

  NucleusBuckets(float max, float factor) : max_(max), factor_(factor) {}
  [[nodiscard]] int of(float logit) const {
    return static_cast<int>(std::min((max_ - logit) * factor_ * kPerNat, static_cast<float>(kCount - 1)));
  }
  void add(float logit, float weight) { sums_[of(logit)] += static_cast<double>(weight); }
  struct ReachedBucket {
    int bucket = 0;
    double before = 0.0;   ///< sum of the earlier buckets
    bool reached = false;  ///< false: the last bucket that is not empty, since the target may be rounded above the sum
  };
  /// Returns the bucket in which the sum reaches `wanted`.
  [[nodiscard]] ReachedBucket reaching(double wanted) const {
    ReachedBucket last;
    double sum = 0.0;
    for (int bucket = 0; bucket < kCount && !last.reached; ++bucket) {
      if (sums_[bucket] == 0.0) continue;
      last = {bucket, sum, sum + sums_[bucket] >= wanted};
      sum += sums_[bucket];
    }
    return last;
  }
  /// Returns approximately the smallest logit of a bucket.
  [[nodiscard]] float floor_of(int bucket) const {
    return bucket < kCount - 1 ? max_ - static_cast<float>(bucket + 1) / kPerNat / factor_
                               : -std::numeric_limits<float>::infinity();
  }

 private:
  static constexpr float kPerNat = 80.0f;  // the last bucket holds all beyond e^-25
  float max_;
  float factor_;
  double sums_[kCount] = {};
};

/// Returns a logit below which, by a sample of the vocabulary, no candidate of top_p lies.
float guess_nucleus_floor(std::span<const float> logits, float max, float factor, double top_p,
                          const SamplerScratch& scratch) {
  constexpr size_t kStride = 16;
  constexpr int kMarginBuckets = 40;
  NucleusBuckets sampled(max, factor);
  double total = 0.0;
  for (size_t id = 0; id < logits.size(); id += kStride) {
    if (scratch.weights[id] == 0.0f) continue;
    sampled.add(logits[id], scratch.weights[id]);
    total += static_cast<double>(scratch.weights[id]);
  }
  return sampled.floor_of(
      std::min(sampled.reaching(top_p * total).bucket + kMarginBuckets, NucleusBuckets::kCount - 1));
}

/// Applies top_p without top_k, and without sorting the vocabulary. It counts logits into buckets and sorts only the
/// bucket in which the sum reaches top_p. It looks only at logits above a guessed floor; if that bucket reaches below
/// the floor, it looks at all. Smaller logits enter no sum, so the guess changes no bit.
Candidates nucleus(const Kernels& kernels, std::span<const float> logits, float max, float factor,
                   const SamplingParams& params, SamplerScratch& scratch) {
  const auto vocab = static_cast<int64_t>(logits.size());
  scratch.weights.resize(logits.size());
  const double total =
      kernels.exp_sum(logits.data(), max, factor, params.min_p, vocab, scratch.weights.data(), nullptr);
  const double wanted = static_cast<double>(params.top_p) * total;
  const auto logit_of = [&](TokenId id) { return logits[static_cast<size_t>(id)]; };
  const auto weight_of = [&](TokenId id) { return scratch.weights[static_cast<size_t>(id)]; };

  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  std::vector<TokenId>& ids = scratch.candidates;
  NucleusBuckets::ReachedBucket last;
  const auto find_last = [&](float floor) {
    const int64_t above = kernels.count_above(logits.data(), std::nextafter(floor, kLowest), vocab);
    ids.resize(static_cast<size_t>(above));
    kernels.collect(logits.data(), std::max(floor, std::numeric_limits<float>::lowest()), vocab, ids.data(), above);
    std::erase_if(ids, [&](TokenId id) { return weight_of(id) == 0.0f; });
    NucleusBuckets buckets(max, factor);
    for (const TokenId id : ids) buckets.add(logit_of(id), weight_of(id));
    last = buckets.reaching(wanted);
    return last.reached && buckets.of(floor) > last.bucket;
  };
  const float guess = guess_nucleus_floor(logits, max, factor, static_cast<double>(params.top_p), scratch);
  if (!find_last(guess)) find_last(kLowest);

  const NucleusBuckets buckets(max, factor);
  std::vector<TokenId> order;  // the last bucket: descending logit, ascending id
  for (const TokenId id : ids) {
    if (buckets.of(logit_of(id)) == last.bucket) order.push_back(id);
  }
  const auto precedes = [&](TokenId a, TokenId b) {
    return logit_of(a) != logit_of(b) ? logit_of(a) > logit_of(b) : a < b;
  };
  std::sort(order.begin(), order.end(), precedes);
  size_t kept = 0;
  for (double before = last.before; kept < order.size() && (kept == 0 || before < wanted); ++kept) {
    before += static_cast<double>(weight_of(order[kept]));
  }
  const TokenId end = order[kept - 1];
  std::erase_if(ids, [&](TokenId id) { return precedes(end, id); });
  for (size_t i = 0; i < ids.size(); ++i) scratch.weights[i] = weight_of(ids[i]);
  scratch.weights.resize(ids.size());
  return listed(scratch);
}

}  // namespace

void collect_largest(const Kernels& kernels, std::span<const float> logits, int64_t count, SamplerScratch& scratch) {
  const auto vocab = static_cast<int64_t>(logits.size());
  std::vector<TokenId>& ids = scratch.candidates;
  CHECK(count > 0 && count <= vocab, "{} of {} logits", count, vocab);
  // The count-th largest of the block maxima bounds the count-th largest logit from below.
  float threshold = -std::numeric_limits<float>::infinity();
  std::vector<float>& maxima = scratch.maxima;
  maxima.resize(static_cast<size_t>((vocab + kMaxBlock - 1) / kMaxBlock));
  if (count <= static_cast<int64_t>(maxima.size())) {
    kernels.block_max(logits.data(), vocab, maxima.data());
    std::nth_element(maxima.begin(), maxima.begin() + (count - 1), maxima.end(), std::greater<>());
    threshold = maxima[static_cast<size_t>(count - 1)];
  }
  ids.resize(static_cast<size_t>(vocab));
  const int64_t found = kernels.collect(logits.data(), threshold, vocab, ids.data(), vocab);
  ids.resize(static_cast<size_t>(found));
  if (found == count) return;
  maxima.resize(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) maxima[i] = logits[static_cast<size_t>(ids[i])];
  std::nth_element(maxima.begin(), maxima.begin() + (count - 1), maxima.end(), std::greater<>());
  const float smallest = maxima[static_cast<size_t>(count - 1)];
  std::erase_if(ids, [&](TokenId id) { return logits[static_cast<size_t>(id)] < smallest; });
}

Candidates find_candidates(const Kernels& kernels, std::span<const float> logits, const SampleSpec& spec,
                           SamplerScratch& scratch) {
  const SamplingParams& params = *spec.params;
  const auto vocab = static_cast<int64_t>(logits.size());
  const std::span<const float> processed = process(logits, spec, scratch);
  const LogitExtremes extremes = kernels.extremes(processed.data(), vocab);
  if (const LogitFault fault = fault_of(extremes); fault != LogitFault::kNone) return {.fault = fault};
  const float max = extremes.max;
  if (params.greedy()) {
    scratch.candidates.assign(1, static_cast<TokenId>(kernels.find(processed.data(), max, vocab)));
    scratch.weights.assign(1, 1.0f);
    return listed(scratch);
  }
  const float factor = 1.0f / params.temperature;
  if (params.top_k > 0 && params.top_k < vocab) {
    collect_largest(kernels, processed, params.top_k, scratch);
    weigh(processed, max, factor, params.min_p, scratch);
    if (params.top_p < 1.0f) cut_top_p(params.top_p, sum_of(scratch.weights), scratch);
    return listed(scratch);
  }
  if (params.top_p < 1.0f) return nucleus(kernels, processed, max, factor, params, scratch);
  scratch.weights.resize(logits.size());
  scratch.block_sums.resize((logits.size() + kSumBlock - 1) / kSumBlock);
  const double total = kernels.exp_sum(processed.data(), max, factor, params.min_p, vocab, scratch.weights.data(),
                                       scratch.block_sums.data());
  return {.weights = scratch.weights, .block_sums = scratch.block_sums, .total = total};
}

TokenId draw(const Candidates& candidates, double uniform) {
  const double target = uniform * candidates.total;
  double before = 0.0;
  size_t first = 0;
  for (const double sum : candidates.block_sums) {
    if (before + sum > target) break;
    before += sum;
    first += kSumBlock;
  }
  size_t last_possible = candidates.weights.size();
  for (size_t i = first; i < candidates.weights.size(); ++i) {
    if (candidates.weights[i] == 0.0f) continue;
    last_possible = i;
    before += static_cast<double>(candidates.weights[i]);
    if (before > target) break;
  }
  // Rounding may leave the target beyond the last sum, and even beyond the last block. The last possible id is drawn
  // then.
  for (size_t i = candidates.weights.size(); last_possible == candidates.weights.size(); --i) {
    CHECK(i > 0, "no candidate has weight");
    if (candidates.weights[i - 1] > 0.0f) last_possible = i - 1;
  }
  return candidates.ids.empty() ? static_cast<TokenId>(last_possible) : candidates.ids[last_possible];
}

tensor::ScoreResult token_logprobs(const Kernels& kernels, std::span<const float> logits, TokenId token,
                                   int32_t top_count, SamplerScratch& scratch) {
  const auto vocab = static_cast<int64_t>(logits.size());
  CHECK(in_vocab(token, logits.size()), "token {} of a vocabulary of {}", token, vocab);
  const LogitExtremes extremes = kernels.extremes(logits.data(), vocab);
  if (const LogitFault fault = fault_of(extremes); fault != LogitFault::kNone) return {.fault = fault};
  const float max = extremes.max;
  const double sum = kernels.exp_sum(logits.data(), max, 1.0f, 0.0f, vocab, nullptr, nullptr);
  const double normaliser = static_cast<double>(max) + std::log(sum);
  const auto logprob = [&](TokenId id) {
    return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)]) - normaliser);
  };
  const float own = logits[static_cast<size_t>(token)];
  tensor::ScoreResult scored{.logprobs = {.token = token, .logprob = logprob(token)}};
  tensor::TokenLogprobs& result = scored.logprobs;
  result.rank = static_cast<int32_t>(kernels.count_above(logits.data(), own, vocab)) + 1;
  if (top_count <= 0) return scored;
  collect_largest(kernels, logits, std::min<int64_t>(top_count, vocab), scratch);
  std::sort(scratch.candidates.begin(), scratch.candidates.end(), [&](TokenId a, TokenId b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  scratch.candidates.resize(static_cast<size_t>(std::min<int64_t>(top_count, vocab)));
  for (const TokenId id : scratch.candidates) result.top.emplace_back(id, logprob(id));
  return scored;
}

std::vector<std::pair<TokenId, float>> sampling_distribution(std::span<const float> logits, int32_t vocab,
                                                             const SampleSpec& spec) {
  SamplerScratch scratch;
  const Kernels& kernels = *kernels_for(available_isas().back());
  const Candidates candidates = find_candidates(kernels, logits.first(static_cast<size_t>(vocab)), spec, scratch);
  std::vector<std::pair<TokenId, float>> distribution;
  for (size_t i = 0; i < candidates.weights.size(); ++i) {
    if (candidates.weights[i] == 0.0f) continue;
    const auto id = candidates.ids.empty() ? static_cast<TokenId>(i) : candidates.ids[i];
    distribution.emplace_back(id, static_cast<float>(static_cast<double>(candidates.weights[i]) / candidates.total));
  }
  return distribution;
}

}  // namespace millrace::cpu
