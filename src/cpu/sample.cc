#include "base/check.h"
#include "base/random.h"
#include "cpu/ops.h"
#include "cpu/sampling.h"

namespace millrace::cpu {

void sample(Device& device, tensor::Matrix logits, int32_t vocab, std::span<const tensor::SampleSpec> specs,
            std::span<tensor::SampleResult> results) {
  check_matrix("logits", logits, tensor::DType::kF32, static_cast<int64_t>(specs.size()), logits.cols);
  CHECK(results.size() == specs.size(), "{} results for {} rows", results.size(), specs.size());
  CHECK(vocab > 0 && vocab <= logits.cols, "{} drawable ids of {} logits", vocab, logits.cols);
  device.pool.run_ranges(logits.rows, [&](int64_t begin, int64_t end, int slot) {
    SamplerScratch& scratch = device.samplers[static_cast<size_t>(slot)];
    for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) {
      const std::span<const float> raw(row_of<const float>(logits, static_cast<int64_t>(row)),
                                       static_cast<size_t>(vocab));
      const tensor::SampleSpec& spec = specs[row];
      const Candidates candidates = find_candidates(device.kernels, raw, spec, scratch);
      results[row] = {.fault = candidates.fault};
      if (candidates.fault != tensor::LogitFault::kNone) continue;
      const TokenId token =
          draw(candidates, spec.params->greedy() ? 0.0 : uniform_at(spec.params->seed, spec.position));
      results[row].token = token;
      if (spec.params->top_logprobs < 0) continue;
      auto scored = token_logprobs(device.kernels, raw, token, spec.params->top_logprobs, scratch);
      results[row].fault = scored.fault;
      results[row].logprobs = std::move(scored.logprobs);
    }
  });
}

}  // namespace millrace::cpu
