#pragma once

#include <span>

#include "cuda/submissions.h"
#include "tensor/backend.h"

namespace millrace::cuda {

/// Backend::sample and score: what a draw depends on goes to the device in one copy, and what is told of the rows comes
/// back in one. Inside submitted work.
void draw_rows(Device& device, Submissions& submissions, const tensor::Matrix& logits, int32_t vocab,
               std::span<const tensor::SampleSpec> specs, std::span<tensor::SampleResult> results);
void score_rows(Device& device, Submissions& submissions, const tensor::Matrix& logits, int32_t vocab,
                std::span<const TokenId> targets, std::span<const int32_t> top_counts,
                std::span<tensor::ScoreResult> results);

/// Device memory for so many rows: of what draws depend on, with `entries` in all their lists and a mask each; of what
/// scores depend
/// on; of what comes back, with lists of up to `top` alternatives.
[[nodiscard]] size_t sample_input_bytes(size_t rows, size_t entries, int32_t vocab);
[[nodiscard]] size_t score_input_bytes(size_t rows);
[[nodiscard]] size_t sample_output_bytes(size_t rows, int32_t top);

}  // namespace millrace::cuda
