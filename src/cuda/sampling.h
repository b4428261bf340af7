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

}  // namespace millrace::cuda
