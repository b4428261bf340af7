#pragma once

#include <vector>

#include "model/test_pipeline.h"

/// Ways to feed sequences to a model that must all give the same bits.
namespace millrace::test {

using Sequences = std::vector<std::vector<TokenId>>;
/// The logits of each sequence, f32 [tokens, vocab].
using Logits = std::vector<std::vector<float>>;

/// Runs the sequences one by one, in chunks; `seed` shuffles pages.
[[nodiscard]] Logits run_alone(TestPipeline& pipeline, const Sequences& sequences, size_t chunk, uint32_t seed);
/// Runs the sequences together; three join each turn. The chunks of sequence s are chunk + s tokens, so that chunks of
/// several lengths and prefixes meet.
[[nodiscard]] Logits run_batched(TestPipeline& pipeline, const Sequences& sequences, size_t chunk, uint32_t seed);
[[nodiscard]] bool same_bits(const Logits& left, const Logits& right);

}  // namespace millrace::test
