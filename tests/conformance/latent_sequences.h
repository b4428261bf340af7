#pragma once

#include "conformance/sequences.h"
#include "tensor/code_matrix.h"
#include "tensor/fp8.h"

/// Random paged sequences of latents that are fed to latent attention in chunks, and the reference's results.
namespace millrace::test {

/// The sizes of latent attention and of its cache.
struct LatentCase {
  tensor::LatentShape shape;
  int32_t page_size = 16;
  float query_beta = 0.0f;  ///< as in tensor::RotaryTable, as the next one
  int32_t query_period = 1;
  [[nodiscard]] std::string to_string() const {
    return fmt::format("{} heads of {}+{} and {}, latents of {}, page {}, query_beta {}", shape.head_count,
                       shape.nope_dim, shape.rope_dim, shape.value_dim, shape.latent_dim, page_size, query_beta);
  }
};

[[nodiscard]] tensor::LatentShape shape_of(int32_t heads, int32_t nope, int32_t rope, int32_t value, int32_t latent);

/// Random weights. `kv_b` is packed, unless `fp8`, `queries` and `values`, or `rows` hold its values in codes.
struct LatentWeights {
  Values inverse_frequency;  // [rope_dim / 2]
  Values norm;               // [latent_dim]
  Values kv_b;               // [heads·(nope_dim + value_dim), latent_dim]
  const tensor::Fp8Matrix* fp8 = nullptr;
  const tensor::CodeMatrix* queries = nullptr;  ///< see Backend::pack_latent_codes
  const tensor::CodeMatrix* values = nullptr;
  const tensor::CodeMatrix* rows = nullptr;  ///< see Backend::pack_latent_code_rows
  [[nodiscard]] bool has_codes() const { return fp8 != nullptr || queries != nullptr || rows != nullptr; }
};
[[nodiscard]] LatentWeights random_latent_weights(Random& random, const tensor::LatentShape& shape);

/// The tokens of one sequence before norm and rotation, and the chunks in which they are fed.
struct LatentSequence {
  int32_t length = 0;
  Values q;   // [length, heads·(nope_dim + rope_dim)]
  Values kv;  // [length, latent_dim + rope_dim]
  std::vector<int32_t> chunks;
};
[[nodiscard]] LatentSequence random_latents(Random& random, const tensor::LatentShape& shape, int32_t length);
/// Returns the sequence of one head, with its queries alone.
[[nodiscard]] LatentSequence head_of(const LatentSequence& sequence, const tensor::LatentShape& shape, int64_t head);
/// Returns whether the outputs of a head alone are those that all heads have of it.
[[nodiscard]] bool has_head(const Values& all, const Values& own, const tensor::LatentShape& shape, int64_t head);

/// Feeds chunk i of every sequence in step i and returns each sequence's outputs [length, heads·value_dim]. A sequence
/// whose chunks are at an end stays in the batch without rows.
[[nodiscard]] std::vector<Values> feed_latents(tensor::Backend& backend, const LatentCase& sizes,
                                               const LatentWeights& weights,
                                               const std::vector<LatentSequence>& sequences, uint64_t page_seed);

/// Returns a latent as a cache stores it: rounded to `dtype`, and to codes before that unless `stored` is kAuto.
[[nodiscard]] Values stored_latent(const Values& latent, tensor::DType dtype, tensor::KvDType stored);

/// Returns the reference's outputs. What the cache stores, queries and `kv_b` are rounded to `dtype`, unless
/// it is packed in codes.
[[nodiscard]] Values expected_latent_outputs(const LatentCase& sizes, const LatentWeights& weights,
                                             const LatentSequence& sequence, tensor::DType dtype,
                                             tensor::KvDType stored = tensor::KvDType::kAuto);

}  // namespace millrace::test
