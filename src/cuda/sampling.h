#pragma once

#include <span>

#include "cuda/submissions.h"
#include "tensor/backend.h"

namespace millrace::cuda {

/// Implements Backend::sample: one copy brings the inputs to the device, one brings the results back. Called inside
/// submitted work.
void draw_rows(Device& device, Submissions& submissions, const tensor::Matrix& logits, int32_t vocab,
               std::span<const tensor::SampleSpec> specs, std::span<tensor::SampleResult> results);
/// Implements Backend::score in the same way.
void score_rows(Device& device, Submissions& submissions, const tensor::Matrix& logits, int32_t vocab,
                std::span<const TokenId> targets, std::span<const int32_t> top_counts,
                std::span<tensor::ScoreResult> results);

/// Returns the device bytes of the inputs for `rows` rows, with `entries` entries in all lists and one mask per row.
[[nodiscard]] size_t sample_input_bytes(size_t rows, size_t entries, int32_t vocab);
/// Returns the device bytes of the inputs of score.
[[nodiscard]] size_t score_input_bytes(size_t rows);
/// Returns the device bytes of the results, with lists of up to `top` alternatives.
[[nodiscard]] size_t sample_output_bytes(size_t rows, int32_t top);

}  // namespace millrace::cuda
