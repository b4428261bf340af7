#include "base/random.h"
#include "cuda/scored_row.cuh"

namespace millrace::cuda {
namespace {

constexpr uint32_t kSeen = 0x80000000u;
constexpr float kGreedyBelow = 1e-5f;

__device__ bool in_vocab(int32_t token, int32_t vocab) {
  return token >= 0 && token < vocab;
}

/// Adds the biases. The thread with the first bias of a token adds all of that token's, in list order.
__device__ void add_biases(const SampleInputs& in, const SampleRow& spec, int32_t vocab, float* logits) {
  for (int32_t i = spec.bias_begin + static_cast<int32_t>(threadIdx.x); i < spec.bias_end; i += kSamplerThreads) {
    const int32_t token = in.bias_tokens[i];
    if (!in_vocab(token, vocab)) continue;
    bool is_first = true;
    for (int32_t j = spec.bias_begin; j < i; ++j) is_first = is_first && in.bias_tokens[j] != token;
    if (!is_first) continue;
    float logit = logits[token];
    for (int32_t j = i; j < spec.bias_end; ++j) {
      if (in.bias_tokens[j] == token) logit += in.bias_values[j];
    }
    logits[token] = logit;
  }
}

/// Counts the history's tokens. The thread that takes a token's count first applies its penalties.
__device__ void apply_penalties(const SampleInputs& in, const SampleRow& spec, int32_t vocab, const SamplerSlot& slot) {
  const int32_t first = spec.prompt_begin + static_cast<int32_t>(threadIdx.x);
  for (int32_t i = first; i < spec.output_end; i += kSamplerThreads) {
    const int32_t token = in.history_tokens[i];
    if (!in_vocab(token, vocab)) continue;
    atomicOr(slot.counts + token, kSeen);
    if (i >= spec.prompt_end) atomicAdd(slot.counts + token, 1u);
  }
  __syncthreads();
  for (int32_t i = first; i < spec.output_end; i += kSamplerThreads) {
    const int32_t token = in.history_tokens[i];
    if (!in_vocab(token, vocab)) continue;
    const uint32_t taken = atomicExch(slot.counts + token, 0u);
    if (taken == 0) continue;
    const uint32_t count = taken & ~kSeen;
    float logit = slot.logits[token];
    logit = logit > 0.0f ? logit / spec.repetition_penalty : logit * spec.repetition_penalty;
    logit -= spec.frequency_penalty * static_cast<float>(count);
    if (count > 0) logit -= spec.presence_penalty;
    slot.logits[token] = logit;
  }
}

/// Returns the logits after mask, bans, bias and penalties, or the given ones when none applies.
__device__ const float* apply_logit_processors(const SampleInputs& in, const SampleRow& spec, const float* raw,
                                               int32_t vocab, const SamplerSlot& slot) {
  const bool changes = spec.mask_begin >= 0 || spec.banned_begin < spec.banned_end || spec.bias_begin < spec.bias_end ||
                       spec.prompt_begin < spec.output_end;
  if (!changes) return raw;
  const uint32_t* const mask = spec.mask_begin < 0 ? nullptr : in.mask_words + spec.mask_begin;
  __syncthreads();
  for_each_logit(raw, vocab, [&](int32_t id, float logit) {
    const bool allowed = mask == nullptr || ((mask[id / 32] >> (id % 32)) & 1) != 0;
    slot.logits[id] = allowed ? logit : __uint_as_float(0xFF800000u);
  });
  __syncthreads();
  for (int32_t i = spec.banned_begin + static_cast<int32_t>(threadIdx.x); i < spec.banned_end; i += kSamplerThreads) {
    const int32_t token = in.banned_tokens[i];
    if (in_vocab(token, vocab)) slot.logits[token] = __uint_as_float(0xFF800000u);
  }
  __syncthreads();
  add_biases(in, spec, vocab, slot.logits);
  __syncthreads();
  apply_penalties(in, spec, vocab, slot);
  __syncthreads();
  return slot.logits;
}

/// The integer weight of a logit relative to the most probable one.
struct TokenWeight {
  float max = 0.0f;
  float factor = 1.0f;  ///< 1 / temperature
  float min_p = 0.0f;
  __device__ FixedPoint operator()(float logit) const {
    const float weight = expf((logit - max) * factor);
    return weight < min_p ? 0 : static_cast<FixedPoint>(weight * kFullWeight);
  }
};

/// Returns the cutoff of top_k followed by top_p.
__device__ Cutoff apply_top_k_top_p(const SampleRow& spec, const float* logits, int32_t vocab, const TokenWeight& weigh,
                                    int32_t* list) {
  constexpr float kBinsPerNat = 80.0f;
  Cutoff cut;
  if (spec.top_k > 0 && spec.top_k < vocab) {
    const auto wanted = static_cast<FixedPoint>(spec.top_k);
    cut = select_largest(
        logits, vocab, weigh.max, kBinsPerNat * weigh.factor, list, [](int32_t, float) { return FixedPoint{1}; },
        [wanted](FixedPoint) { return wanted; });
  }
  if (spec.top_p < 1.0f) {
    const Cutoff among = cut;
    const auto wanted = [&](FixedPoint total) {
      const auto part = static_cast<FixedPoint>(ceil(static_cast<double>(spec.top_p) * static_cast<double>(total)));
      return max(FixedPoint{1}, min(part, total));
    };
    cut = select_largest(
        logits, vocab, weigh.max, kBinsPerNat * weigh.factor, list,
        [&](int32_t id, float logit) { return among.keeps(logit, id) ? weigh(logit) : FixedPoint{0}; }, wanted);
    keep_needed_ties(logits, list, weigh(value_of_key(cut.key)), cut);
  }
  return cut;
}

/// Returns the token at the drawn position of the cumulative distribution over the kept ids, ascending.
__device__ int32_t draw(const float* logits, int32_t vocab, const TokenWeight& weigh, const Cutoff& cut,
                        double uniform) {
  SamplerShared& shared = sampler_shared();
  const auto weight_of = [&](int32_t id) {
    const float logit = logits[id];
    return cut.keeps(logit, id) ? weigh(logit) : FixedPoint{0};
  };
  const int lane = threadIdx.x % kLanes;
  const int32_t segments = ceil_div(vocab, kSegmentIds);
  __syncthreads();
  for (int32_t s = threadIdx.x / kLanes; s < segments; s += kSamplerThreads / kLanes) {
    FixedPoint sum = 0;
    const int32_t end = min(vocab, (s + 1) * kSegmentIds);
    for (int32_t id = s * kSegmentIds + lane; id < end; id += kLanes) sum += weight_of(id);
    for (int bits = kLanes / 2; bits > 0; bits /= 2) sum += __shfl_xor_sync(kAllLanes, sum, bits);
    if (lane == 0) shared.values[s] = sum;
  }
  // All 53 bits of the uniform number, as a fraction of 2^64.
  const auto fraction = static_cast<FixedPoint>(uniform * 0x1p53) << 11;
  const Threshold segment = find_threshold(segments, [&](FixedPoint total) { return __umul64hi(fraction, total) + 1; });
  const int32_t first = segment.index * kSegmentIds;
  const int32_t count = min(kSegmentIds, vocab - first);
  __syncthreads();
  for (int32_t i = threadIdx.x; i < count; i += kSamplerThreads) shared.values[i] = weight_of(first + i);
  return first + find_threshold(count, [&](FixedPoint) { return segment.wanted - segment.before; }).index;
}

__device__ void sample_row(const float* raw, int32_t vocab, int32_t row, const SampleInputs& in,
                           const SampleOutputs& outputs, const SamplerSlot& slot) {
  const SampleRow spec = in.rows[row];
  const float* const logits = apply_logit_processors(in, spec, raw, vocab, slot);
  const Extremes extremes = find_extremes(logits, vocab);
  if (extremes.fault != 0) {
    if (threadIdx.x == 0) outputs.rows[row] = {.fault = extremes.fault};
    return;
  }
  int32_t token = extremes.id;
  if (spec.temperature >= kGreedyBelow) {
    const TokenWeight weigh{extremes.max, 1.0f / spec.temperature, spec.min_p};
    const Cutoff cut = apply_top_k_top_p(spec, logits, vocab, weigh, slot.list);
    token = draw(logits, vocab, weigh, cut, uniform_at(spec.seed, spec.position));
  }
  if (spec.top_logprobs >= 0) {
    score_row({.logits = raw, .vocab = vocab, .row = row, .token = token, .top_count = spec.top_logprobs}, slot.list,
              outputs);
  } else if (threadIdx.x == 0) {
    outputs.rows[row] = {.fault = 0, .token = token};
  }
}

__global__ void __launch_bounds__(kSamplerThreads)
    sample_kernel(const float* logits, int64_t stride, int32_t vocab, int32_t rows, SampleInputs inputs,
                  SampleOutputs outputs, void* workspace) {
  const SamplerSlot slot = slot_at(workspace, static_cast<int32_t>(blockIdx.x), vocab);
  for (auto row = static_cast<int32_t>(blockIdx.x); row < rows; row += static_cast<int32_t>(gridDim.x)) {
    sample_row(logits + row * stride, vocab, row, inputs, outputs, slot);
  }
}

}  // namespace

size_t sample_workspace_bytes(int32_t rows, int32_t vocab) {
  const int32_t slots = rows < kMaxSlots ? rows : kMaxSlots;
  return static_cast<size_t>(slots) * static_cast<size_t>(vocab) * 3 * sizeof(uint32_t);
}

void check_sampler(const char* op, int32_t vocab, const SampleOutputs& outputs) {
  if (vocab <= 0 || vocab > kMaxVocab || outputs.top_capacity < 0 || outputs.top_capacity > kMaxTopLogprobs) {
    throw std::invalid_argument(std::string(op) + ": found a vocabulary of " + std::to_string(vocab) +
                                " and top lists of " + std::to_string(outputs.top_capacity) + ", wanted 1 to " +
                                std::to_string(kMaxVocab) + " and 0 to " + std::to_string(kMaxTopLogprobs));
  }
}

void sample(cudaStream_t stream, const float* logits, int64_t stride, int32_t vocab, int32_t rows,
            const SampleInputs& inputs, const SampleOutputs& outputs, void* workspace) {
  check_sampler("sample", vocab, outputs);
  launch<sample_kernel>(
      {"sample", dim3(rows < kMaxSlots ? rows : kMaxSlots), dim3(kSamplerThreads), sizeof(SamplerShared)}, stream,
      logits, stride, vocab, rows, inputs, outputs, workspace);
}

}  // namespace millrace::cuda
