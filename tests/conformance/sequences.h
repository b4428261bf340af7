#pragma once

#include "conformance/harness.h"
#include "tensor/kv_dtype.h"

/// Random paged sequences that are fed to rotary_store_kv and attention in chunks, and the reference's results.
namespace millrace::test {

struct AttentionCase {
  int32_t head_count = 4;
  int32_t kv_head_count = 2;
  int32_t head_dim = 64;
  int32_t rotary_dim = 64;
  int32_t sliding_window = 0;
  int32_t page_size = 16;
  float attention_factor = 1.0f;
  bool norms = false;
  bool causal = true;  ///< else every sequence is one chunk
  float soft_cap = 0.0f;
  bool sinks = false;
  bool norms_all_heads = false;  ///< with `norms`: of all heads together
  tensor::HeadNorm head_norm = tensor::HeadNorm::kRms;
  bool value_norm = false;
  bool values_are_keys = false;
  float query_beta = 0.0f;
  int32_t query_period = 1;
  int32_t query_offset = 0;
  int32_t chunk_size = 0;
  /// Returns whether the norms have weights for each head.
  [[nodiscard]] bool has_head_weights() const { return norms_all_heads || head_norm == tensor::HeadNorm::kLayer; }
  /// Returns the heads of v in qkv.
  [[nodiscard]] int32_t value_head_count() const { return values_are_keys ? 0 : kv_head_count; }
  /// Returns whether a backend has the features that the case uses.
  [[nodiscard]] bool is_computed_by(const tensor::Backend& backend) const;
  [[nodiscard]] std::string to_string() const;
};

/// The norms of heads that are no RMS norm before the rotation.
inline constexpr AttentionCase kLayerNormOfHeads = {
    .head_dim = 48, .rotary_dim = 48, .norms = true, .head_norm = tensor::HeadNorm::kLayer};
inline constexpr AttentionCase kNormAfterRotation = {
    .head_dim = 48, .rotary_dim = 32, .norms = true, .head_norm = tensor::HeadNorm::kRotatedRms};

/// The tokens of one sequence before rotation, and the chunks in which they are fed.
struct TestSequence {
  int32_t length = 0;
  Values qkv;                   // [length, (heads + kv_heads + value heads)·head_dim]
  std::vector<int32_t> chunks;  // sizes; their sum is `length`
};

[[nodiscard]] TestSequence random_sequence(Random& random, const AttentionCase& sizes, int32_t length, bool one_by_one);

struct Weights {
  Values inverse_frequency;  // [rotary_dim / 2]
  Values q_norm;             // [head_dim], or [heads·head_dim]
  Values k_norm;             // [head_dim], or [kv_heads·head_dim]
  Values sinks;              // [heads]
};
[[nodiscard]] Weights random_weights(Random& random, const AttentionCase& sizes);

/// How the sequences are batched. `page_seed` shuffles the page tables. `noise` first fills the cache with stale data,
/// non-finite keys included.
struct Feeding {
  uint64_t page_seed = 0;
  int32_t layer = 1;
  bool noise = false;
};

/// Feeds chunk i of every sequence in step i and returns each sequence's outputs [length, heads·head_dim].
[[nodiscard]] std::vector<Values> feed(tensor::Backend& backend, const AttentionCase& sizes, const Weights& weights,
                                       const std::vector<TestSequence>& sequences, const Feeding& feeding);

/// Each sequence's pages, in a shuffled order, of a cache with spare pages.
struct PageTables {
  std::vector<std::vector<PageId>> pages;
  int32_t page_count = 3;
};
[[nodiscard]] PageTables shuffled_pages(int32_t page_size, const std::vector<int32_t>& lengths, uint64_t seed);

/// Returns random sizes of chunks that cover `length` tokens.
[[nodiscard]] std::vector<int32_t> random_chunks(Random& random, int32_t length, bool one_by_one);

/// Returns the reference's outputs, with q, k and v rounded to `dtype`. Codes of `stored` are the values of k and v.
[[nodiscard]] Values expected_outputs(const AttentionCase& sizes, const Weights& weights, const TestSequence& sequence,
                                      tensor::DType dtype, tensor::KvDType stored = tensor::KvDType::kAuto);

}  // namespace millrace::test
