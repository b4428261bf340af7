#include "base/check.h"
#include "cpu/ops.h"
#include "cpu/sampling.h"

namespace millrace::cpu {

void score(Device& device, tensor::Matrix logits, int32_t vocab, std::span<const TokenId> targets,
           std::span<const int32_t> top_counts, std::span<tensor::ScoreResult> results) {
  check_matrix("logits", logits, tensor::DType::kF32, static_cast<int64_t>(targets.size()), logits.cols);
  CHECK(top_counts.size() == targets.size() && results.size() == targets.size(), "{} counts, {} results for {} targets",
        top_counts.size(), results.size(), targets.size());
  CHECK(vocab > 0 && vocab <= logits.cols, "{} ids of {} logits", vocab, logits.cols);
  device.pool.run_ranges(logits.rows, [&](int64_t begin, int64_t end, int slot) {
    for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) {
      const std::span<const float> raw(row_of<const float>(logits, static_cast<int64_t>(row)),
                                       static_cast<size_t>(vocab));
      results[row] = token_logprobs(device.kernels, raw, targets[row], top_counts[row],
                                    device.samplers[static_cast<size_t>(slot)]);
    }
  });
}

}  // namespace millrace::cpu
