#pragma once

#include <vector>

#include "golden_test/golden_file.h"
#include "model/test_pipeline.h"

namespace millrace::test {

/// The comparison of a model's outputs with a golden file, over all its prompts.
struct Agreement {
  LogitDistance logits;       ///< the stored ones
  double logprob_max = 0.0;   ///< of the prompts' logprobs, nats
  size_t greedy_checked = 0;  ///< steps whose margin is not doubtful
  size_t greedy_wrong = 0;    ///< of those, under teacher forcing
};

/// Runs each prompt and its golden continuation through `pipeline`, alone and in one piece. Steps with a margin of at
/// most `doubtful_margin` are not counted.
[[nodiscard]] Agreement measure_agreement(TestPipeline& pipeline, const GoldenFamily& family, double doubtful_margin);

}  // namespace millrace::test
