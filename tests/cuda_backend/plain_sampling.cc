// sample and score of cuda/kernels.h over the CPU's sampler; see plain_kernels.cc.

#include "cpu/isa.h"
#include "cpu/sampling.h"
#include "cuda/emulator/emulator.h"
#include "cuda/kernels.h"
#include "base/random.h"

namespace millrace::cuda {
namespace {

const cpu::Kernels& kernels() {
  return *cpu::kernels_for(cpu::Isa::kPortable);
}

tensor::SamplingParams params_of(const SampleRow& row, const SampleInputs& inputs) {
  tensor::SamplingParams params{.temperature = row.temperature,
                                .top_p = row.top_p,
                                .min_p = row.min_p,
                                .top_k = row.top_k,
                                .repetition_penalty = row.repetition_penalty,
                                .frequency_penalty = row.frequency_penalty,
                                .presence_penalty = row.presence_penalty,
                                .seed = row.seed,
                                .top_logprobs = row.top_logprobs};
  for (int32_t i = row.bias_begin; i < row.bias_end; ++i) {
    params.logit_bias.emplace_back(inputs.bias_tokens[i], inputs.bias_values[i]);
  }
  params.stop_token_ids.assign(inputs.banned_tokens + row.banned_begin, inputs.banned_tokens + row.banned_end);
  params.min_tokens = params.stop_token_ids.empty() ? 0 : 1;
  return params;
}

void tell(const SampleOutputs& outputs, int32_t row, tensor::LogitFault fault, const tensor::TokenLogprobs& scored) {
  outputs.rows[row] = {static_cast<int32_t>(fault), scored.token, scored.logprob, scored.rank,
                       static_cast<int32_t>(scored.top.size())};
  for (size_t i = 0; i < scored.top.size(); ++i) {
    const size_t at = static_cast<size_t>(row) * static_cast<size_t>(outputs.top_capacity) + i;
    outputs.top_tokens[at] = scored.top[i].first;
    outputs.top_logprobs[at] = scored.top[i].second;
  }
}

void draw_row(std::span<const float> logits, const SampleInputs& inputs, const SampleOutputs& outputs, int32_t row) {
  const SampleRow& wanted = inputs.rows[row];
  const tensor::SamplingParams params = params_of(wanted, inputs);
  const int32_t* history = inputs.history_tokens;
  tensor::SampleSpec spec{&params,
                          wanted.position,
                          0,
                          {history + wanted.prompt_begin, history + wanted.prompt_end},
                          {history + wanted.prompt_end, history + wanted.output_end},
                          {}};
  if (wanted.mask_begin >= 0) {
    spec.allowed = {inputs.mask_words + wanted.mask_begin, (logits.size() + 31) / 32};
  }
  cpu::SamplerScratch scratch;
  const cpu::Candidates candidates = cpu::find_candidates(kernels(), logits, spec, scratch);
  if (candidates.fault != tensor::LogitFault::kNone) return tell(outputs, row, candidates.fault, {});
  const TokenId token = cpu::draw(candidates, params.greedy() ? 0.0 : uniform_at(params.seed, wanted.position));
  if (params.top_logprobs < 0) return tell(outputs, row, tensor::LogitFault::kNone, {.token = token});
  const tensor::ScoreResult scored = cpu::token_logprobs(kernels(), logits, token, params.top_logprobs, scratch);
  tell(outputs, row, scored.fault, scored.logprobs);
}

}  // namespace

size_t sample_workspace_bytes(int32_t rows, int32_t) {
  return static_cast<size_t>(rows);
}

void sample(cudaStream_t stream, const float* logits, int64_t stride, int32_t vocab, int32_t rows,
            const SampleInputs& inputs, const SampleOutputs& outputs, void*) {
  emulator::emulated_enqueue(stream, [=] {
    for (int32_t row = 0; row < rows; ++row) {
      draw_row({logits + row * stride, static_cast<size_t>(vocab)}, inputs, outputs, row);
    }
  });
}

void score(cudaStream_t stream, const float* logits, int64_t stride, int32_t vocab, int32_t rows,
           const int32_t* targets, const int32_t* top_counts, const SampleOutputs& outputs, void*) {
  emulator::emulated_enqueue(stream, [=] {
    for (int32_t row = 0; row < rows; ++row) {
      cpu::SamplerScratch scratch;
      const tensor::ScoreResult scored = cpu::token_logprobs(
          kernels(), {logits + row * stride, static_cast<size_t>(vocab)}, targets[row], top_counts[row], scratch);
      tell(outputs, row, scored.fault, scored.logprobs);
    }
  });
}

}  // namespace millrace::cuda
