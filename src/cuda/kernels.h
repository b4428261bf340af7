#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "tensor/attention_shape.h"
#include "tensor/routing.h"

/// The ops of tensor::Backend on device memory. Each function launches kernels on `stream` and returns; it neither
/// allocates nor waits. Data that varies between batches is read from device memory, so that a captured graph can be
/// replayed with new contents. Arguments hold upper bounds only. Pointers are device pointers, at least 16-byte
/// aligned.
///
/// The compute dtype is bf16 (GEMM inputs, q, k, v, pages); the residual stream and all sums are f32. The order of
/// every sum follows from the model's shapes alone. A row's bits depend neither on the other rows nor on the bounds.
///
/// Errors: a refused launch throws std::runtime_error with the kernel's name. A bound that a kernel cannot meet throws
/// std::invalid_argument.
namespace millrace::cuda {

/// Loads every kernel onto the current device, at start. A driver that loads a kernel at its first launch may wait for
/// running work, and thus for a receive whose data never comes. Throws where the device cannot run one.
void load_kernels();

/// Keys per split. Each split of a sequence, from key 0 on, gives one partial result of a row's attention
/// (docs/cuda.md).
inline constexpr int32_t kSplitKeys = 256;
/// Rows up to which a sequence is divided by splits. More rows make enough blocks without.
inline constexpr int32_t kMaxSplitKvRows = 16;
/// Returns the entries that a sequence adds to DeviceBatch::split_begin. `context` includes its new rows.
[[nodiscard]] constexpr int32_t splits_of(int32_t rows, int32_t context) {
  return rows <= kMaxSplitKvRows ? (context + kSplitKeys - 1) / kSplitKeys : 0;
}

/// A ragged batch in device memory; contract: tensor::BatchLayout. Rows from row_begin[*sequence_count] on are padding.
/// Ops that look at sequences skip them; the others compute harmless values.
struct DeviceBatch {
  const int32_t* sequence_count = nullptr;  // [1]
  const int32_t* row_begin = nullptr;       // [sequences + 1]
  const int32_t* prefix = nullptr;          // [sequences]
  const int32_t* split_begin = nullptr;     // [sequences + 1] sums of splits_of
  const int32_t* page_begin = nullptr;      // [sequences + 1]
  const uint32_t* pages = nullptr;          // [page_begin[sequences]]
  const int32_t* drafts = nullptr;          // [sequences] rows at the end of each that are drafts; null: none
};

/// Upper bounds of a batch. They size grids; results do not depend on them.
struct BatchBounds {
  int32_t rows = 0;  ///< of the batch
  int32_t sequences = 0;
  int32_t sequence_rows = 0;  ///< of one sequence; 1 when all decode
  int32_t splits = 0;         ///< of the batch
  int32_t context = 0;        ///< tokens of one sequence, new rows included
};

/// Maximum of channels per head that attention supports.
inline constexpr int32_t kMaxHeadDim = 512;

/// What pages store in place of a value: the value in bf16, or a code of 8 bits that counts times a scale.
enum class KvElement : int32_t {
  kBf16,
  kInt8,  ///< a scale per 32 channels
  kE4M3,  ///< a scale per head, or per 128 channels of a latent
};
/// KV pages: page p begins at data + p · kv_page_bytes. A page is bf16 [layer][K|V][kv_head][token][channel_stride], so
/// that one layer of it is contiguous. Channels from head_dim to channel_stride are zeros. A layer of a page of latents
/// is bf16 [token][channel_stride], then [token][channel_stride of index_dim]. A page of states is f32
/// [layer][state_values].
///
/// A layer of codes is [K|V][kv_head][token][code_stride], then scales [kv_head][token][kv_scale_count][K|V] in bf16.
/// A token of codes of a latent is [code_stride of latent_dim], the rotated key in bf16 [channel_stride], then scales
/// in bf16 up to whole 16 bytes. An indexer's keys stay in bf16.
struct DeviceKvCache {
  void* data = nullptr;
  int32_t layer_count = 0;
  int32_t kv_head_count = 0;
  int32_t head_dim = 0;      ///< at most kMaxHeadDim, except for latents
  int32_t latent_dim = 0;    ///< above 0: a cache of latents, as tensor::KvCacheShape has them
  int32_t index_dim = 0;     ///< above 0: a cache of latents with the keys of an indexer
  int64_t state_values = 0;  ///< above 0: a cache of states
  int32_t page_size = 0;
  KvElement element = KvElement::kBf16;
};
/// Returns head_dim rounded up to whole 16-byte loads.
[[nodiscard]] constexpr int32_t channel_stride(int32_t head_dim) {
  return (head_dim + 7) / 8 * 8;
}
/// Returns the same for codes of one byte.
[[nodiscard]] constexpr int32_t code_stride(int32_t head_dim) {
  return (head_dim + 15) / 16 * 16;
}
/// Channels that share a scale of kInt8.
inline constexpr int32_t kInt8ScaleChannels = 32;
/// Returns the scales of a key in a cache of codes, which are those of its value too.
[[nodiscard]] constexpr int32_t kv_scale_count(const DeviceKvCache& cache) {
  return cache.element == KvElement::kInt8 ? (cache.head_dim + kInt8ScaleChannels - 1) / kInt8ScaleChannels : 1;
}
/// Channels of a latent that share a scale of kE4M3.
inline constexpr int32_t kLatentScaleChannels = 128;
/// Returns the channels that share a scale in a cache of codes of latents.
[[nodiscard]] constexpr int32_t latent_scale_channels(const DeviceKvCache& cache) {
  return cache.element == KvElement::kInt8 ? kInt8ScaleChannels : kLatentScaleChannels;
}
/// Returns the bytes from the codes of a latent to its scales.
[[nodiscard]] constexpr int32_t latent_scales_offset(const DeviceKvCache& cache) {
  return code_stride(cache.latent_dim) + 2 * channel_stride(cache.head_dim - cache.latent_dim);
}
/// Returns the bytes of a latent with its rotated key in a page, a multiple of 16.
[[nodiscard]] constexpr int32_t latent_token_bytes(const DeviceKvCache& cache) {
  if (cache.element == KvElement::kBf16) return 2 * channel_stride(cache.head_dim);
  const int32_t channels = latent_scale_channels(cache);
  return latent_scales_offset(cache) + 2 * channel_stride((cache.latent_dim + channels - 1) / channels);
}
/// Returns the bytes of one layer of one page, a multiple of 16.
[[nodiscard]] constexpr size_t kv_layer_bytes(const DeviceKvCache& cache) {
  if (cache.state_values > 0) return (static_cast<size_t>(cache.state_values) + 3) / 4 * 16;
  const auto page_size = static_cast<size_t>(cache.page_size);
  const size_t tokens = static_cast<size_t>(cache.kv_head_count) * page_size;
  if (cache.latent_dim > 0)
    return page_size * static_cast<size_t>(latent_token_bytes(cache) + 2 * channel_stride(cache.index_dim));
  if (cache.element == KvElement::kBf16) return 4 * tokens * static_cast<size_t>(channel_stride(cache.head_dim));
  const auto token_bytes = static_cast<size_t>(2 * code_stride(cache.head_dim) + 4 * kv_scale_count(cache));
  return (tokens * token_bytes + 15) / 16 * 16;
}
/// Returns the bytes of one page over all layers.
[[nodiscard]] constexpr size_t kv_page_bytes(const DeviceKvCache& cache) {
  return kv_layer_bytes(cache) * static_cast<size_t>(cache.layer_count);
}

/// The direction of page copies: from the cache to the host, or back.
enum class PageCopyDirection : int32_t { kToHost, kToDevice };
/// Pages of a cache, and the address of each in pinned host memory, 16-byte aligned with the page's layout. The list is
/// copied with the launch and need not outlive the call.
struct PageCopyList {
  static constexpr int32_t kMaxPages = 256;
  int32_t count = 0;
  uint32_t page[kMaxPages] = {};
  void* host[kMaxPages] = {};
};
/// Copies layers [first_layer, first_layer + layer_count) of all pages in one launch, which uses few multiprocessors.
void copy_pages(cudaStream_t stream, PageCopyDirection way, const DeviceKvCache& cache, int32_t first_layer,
                int32_t layer_count, const PageCopyList& pairs);

/// The instruction of GEMMs. kMma is for any device; kWgmma is for compute capability 9.0 where sm_90a was compiled.
/// Rounding may differ between the two, so all GEMMs of a stage use the same one.
enum class MatrixInstruction : int32_t { kMma, kWgmma };
/// Returns whether the current device has kWgmma and this build its kernels.
[[nodiscard]] bool has_wgmma();

/// The shards of a sum that a device computes (tensor::SumShards). Shard s has the terms [border[s], border[s + 1]).
inline constexpr int32_t kMaxShards = 8;
struct DeviceShards {
  int32_t count = 0;  ///< 1, 2, 4 or 8; 0: the sum is never divided
  int32_t border[kMaxShards + 1] = {};
};

/// What the codes of a packed weight stand for.
enum class WeightCodes : int32_t {
  kBf16,    ///< the weights themselves
  kInt4,    ///< integers from 0 to 15
  kTable4,  ///< 16 integers from -128 to 127
  kInt8,    ///< integers from -128 to 127
  kE4M3,    ///< numbers in E4M3, with kF32 alone
  /// Numbers in E4M3 in rows of a multiple of 128 inputs, which share a scale. Inputs are rounded to E4M3 too, 128 with
  /// one f32 scale (largest / 448). The products of 128 inputs are summed by the instruction, then scaled and added in
  /// f32.
  kE4M3Both,
};
/// How the integer n of a code becomes a weight: each operation rounds to f32, and the result is rounded to bf16.
enum class CodeScales : int32_t {
  kBf16,        ///< s: n · s; with kInt4 (n - 8) · s
  kF16,         ///< the same with an f16
  kBf16Zero,    ///< a signed 16-bit integer z, and s: (n - z) · s
  kF16Zero,     ///< the same with an f16
  kF32,         ///< f32 s: n · s
  kF32Zero,     ///< f32 s and z: (n - z) · s
  kF32Minimum,  ///< f32 s and m: n · s + m
  kE4M3Halves,  ///< f32 s, and a factor h in E4M3 for each 16 inputs: n · (s · h); not with kInt4
  kInt8Halves,  ///< the same with integers from -128 to 127
  kF16Factors,  ///< f16 s and m, and integers h and g for each 32 inputs: n · (s · h) + m · g
};
/// The format of a packed weight. Its layout is in weight_layout.h.
struct WeightFormat {
  WeightCodes codes = WeightCodes::kBf16;
  CodeScales scales = CodeScales::kBf16;
  int32_t scales_per_step = 1;  ///< of a row: one for 64 inputs, or two for 32 inputs each
  uint32_t integers[4] = {};    ///< of kTable4: 16 bytes, each an integer plus 128

  friend constexpr bool operator==(const WeightFormat&, const WeightFormat&) = default;
};

/// A packed weight: bf16 [panel of 64 rows][step of 64 inputs][row 64][chunk 8][8]. The chunks of a row are permuted by
/// chunk_offset (packed_weight.h). Rows and inputs outside the matrix are zeros. Rows are features. With `gate_up`,
/// rows 16i…16i+7 are gate features 8i…8i+7, and the eight rows after them are up features. In another format codes and
/// scales are in the order of weight_layout.h, and GEMMs have the bits of one with the dequantized weights in bf16.
struct DeviceWeight {
  const void* data = nullptr;
  int32_t out_features = 0;
  int32_t in_features = 0;
  int32_t whole_features = 0;  ///< of all ranks, from which the splits of sums follow; 0: out_features
  int32_t first_column = 0;    ///< of the output and the bias, where the weight gives some columns of `columns`
  int32_t columns = 0;         ///< of the output; 0: out_features
  bool gate_up = false;
  MatrixInstruction by = MatrixInstruction::kMma;
  DeviceShards shards = {};  ///< of inputs; they begin with whole steps
  WeightFormat format = {};
  bool is_f32 = false;  ///< `data` is f32 [out_features, in_features], for matmul_f32 (row_kernels.h) alone
};
/// Returns the bytes of a packed weight in bf16.
[[nodiscard]] size_t packed_weight_bytes(int32_t out_features, int32_t in_features, bool gate_up);

/// The dtype of a matrix to pack.
enum class SourceType : int32_t { kF32, kBF16, kF16 };
/// The rows of a packed weight that a matrix fills.
enum class PackAs : int32_t { kRows, kGate, kUp };
/// Packs a dense row-major matrix [rows, in_features], aligned for its dtype, into `packed`, which is zeroed before.
/// Its rows become features from first_feature on (kRows), or gate or up features. Stacks take one call per part.
void pack_weight(cudaStream_t stream, const void* source, SourceType type, int32_t rows, int32_t in_features,
                 int32_t first_feature, PackAs as, void* packed);
/// Converts `count` elements to bf16 (an embedding table), rounding to nearest even.
void convert_to_bf16(cudaStream_t stream, const void* source, SourceType type, size_t count, void* bf16);

/// hidden (f32) [rows, width] = table (bf16) [vocab, width] [tokens[r]]. A token outside the table gives zeros.
void embed(cudaStream_t stream, const void* table, int32_t vocab, int32_t width, const int32_t* tokens, int32_t rows,
           float* hidden);
/// out (bf16) [rows, width] = rms_norm(hidden (f32)) · weight (f32) [width].
void rms_norm(cudaStream_t stream, const float* hidden, const float* weight, float epsilon, int32_t rows, int32_t width,
              void* out);
/// out [count, row_bytes] = in[rows[r]]. A negative index gives zeros. row_bytes is even.
void gather_rows(cudaStream_t stream, const void* in, size_t row_bytes, const int32_t* rows, int32_t count, void* out);
/// into[i] += values[i] over `count` f32, whose addresses need no alignment beyond that of a float.
void add_values(cudaStream_t stream, const float* values, int64_t count, float* into);

/// Returns the scratch bytes of the three GEMM ops for up to `rows` rows. The scratch is zeroed before its first use.
/// Each GEMM leaves it ready for the next on the same stream, of any shape that fits.
[[nodiscard]] size_t matmul_workspace_bytes(const DeviceWeight& weight, int32_t rows);
/// The dtype of a GEMM's output.
enum class OutputType : int32_t { kF32, kBF16 };
/// out [rows, out_features] = x (bf16) [rows, in_features] · Wᵀ + bias (f32, may be null).
void matmul(cudaStream_t stream, const void* x, const DeviceWeight& weight, const float* bias, int32_t rows, void* out,
            OutputType type, void* workspace);
/// hidden (f32) += x · Wᵀ + bias.
void matmul_add(cudaStream_t stream, const void* x, const DeviceWeight& weight, const float* bias, int32_t rows,
                float* hidden, void* workspace);
/// out (bf16) [rows, out_features] = silu(x·Wgᵀ) · (x·Wuᵀ), with a gate_up weight.
void matmul_silu_mul(cudaStream_t stream, const void* x, const DeviceWeight& weight, int32_t rows, void* out,
                     void* workspace);

/// Returns the scratch bytes of the two ops below for up to `rows` rows. Rules: matmul_workspace_bytes.
[[nodiscard]] size_t sharded_workspace_bytes(const DeviceWeight& weight, int32_t rows);
/// Computes matmul and matmul_add with a weight that has shards, whose sums are added in a binary tree. Inputs between
/// shards are zeros.
void sharded_matmul(cudaStream_t stream, const void* x, const DeviceWeight& weight, const float* bias, int32_t rows,
                    void* out, OutputType type, void* workspace);
void sharded_matmul_add(cudaStream_t stream, const void* x, const DeviceWeight& weight, const float* bias, int32_t rows,
                        float* hidden, void* workspace);
/// Returns the scratch bytes of all GEMM ops with a weight that is not in bf16. Rules: matmul_workspace_bytes.
[[nodiscard]] size_t dequantizing_workspace_bytes(const DeviceWeight& weight, int32_t rows);
/// Returns the scratch bytes of all GEMM ops with a weight of kE4M3Both. Rules: matmul_workspace_bytes.
[[nodiscard]] size_t fp8_workspace_bytes(const DeviceWeight& weight, int32_t rows);
/// Copies rows with zeros before the shards that begin inside a step: out (bf16) [rows, to.border[count]] =
/// x (bf16) [rows, from.border[count]], shard by shard.
void spread_shards(cudaStream_t stream, const void* x, const DeviceShards& from, const DeviceShards& to, int32_t rows,
                   void* out);
/// hidden (f32) [rows, width] += sums (f32) [rows, width] + bias (f32, may be null).
void add_sums(cudaStream_t stream, const float* sums, const float* bias, int32_t rows, int32_t width, float* hidden);

/// How rows choose experts and weigh them, beyond experts per row and renormalization; contract: tensor::Routing.
struct DeviceRouting {
  bool is_plain = true;  ///< a softmax; nothing below counts
  bool chooses_by_score = false;
  tensor::RouterScore score = tensor::RouterScore::kSoftmax;
  tensor::GroupScore group_score = tensor::GroupScore::kMax;
  float scale = 1.0f;
  float sum_epsilon = 0.0f;
  float min_sum = 0.0f;
  const float* choice_bias = nullptr;    // [experts] or null
  const float* expert_scales = nullptr;  // [experts] or null: 1
  int32_t group_count = 1;
  int32_t groups_per_row = 1;
};

/// The experts of a sparse layer; contract: tensor::Routing. Their weights are contiguous packed weights: gate and up
/// [intermediate, hidden], packed as gate_up, and down [hidden, intermediate]. Without gates up alone is packed.
struct DeviceExperts {
  const void* gate_up = nullptr;
  const void* down = nullptr;
  int32_t count = 0;  ///< at most kMaxExperts
  int32_t per_row = 0;
  bool renormalize = false;
  bool weighs_inputs = false;  ///< weights multiply the sums of gate and up, not the outputs
  bool gated = true;           ///< else features are max(x·Wuᵀ, 0)², without biases
  DeviceRouting routing = {};
  int32_t hidden = 0;
  int32_t intermediate = 0;
  tensor::GatedActivation activation = {};
  const float* gate_up_biases = nullptr;  // [own experts][gate | up][intermediate], or null
  const float* down_biases = nullptr;     // [own experts][hidden], or null
  MatrixInstruction by = MatrixInstruction::kMma;
  WeightFormat gate_up_format = {};
  WeightFormat down_format = {};
  DeviceShards shards = {};  ///< of experts; without any, all experts are one shard

  /// Returns the experts [first, end) whose weights are there.
  [[nodiscard]] constexpr int32_t first() const { return shards.count > 0 ? shards.border[0] : 0; }
  [[nodiscard]] constexpr int32_t end() const { return shards.count > 0 ? shards.border[shards.count] : count; }
};
/// Maximum of experts in a layer.
inline constexpr int32_t kMaxExperts = 512;
/// Returns the scratch bytes of fused_moe for up to `rows` rows, at most 256 MiB, which then serves parts of the rows.
/// The scratch is zeroed before its first use. Each call leaves it ready for the next on the same stream, with any
/// experts and rows.
[[nodiscard]] size_t fused_moe_workspace_bytes(const DeviceExperts& experts, int32_t rows);
/// hidden (f32) [rows, hidden] += Σ p_e · (f(x·Wg_eᵀ + bg_e, x·Wu_eᵀ + bu_e)·Wd_eᵀ + bd_e) over the experts e of each
/// row, f being their activation. Router logits (f32) [rows, experts] choose them; x is (bf16) [rows, hidden].
/// Within a shard terms are added in ascending order of experts, the shards' sums in a binary tree. Experts of other
/// devices add nothing. Padding rows stay unchanged, and no expert is read for them. `rows` bounds the rows of
/// sequences. With less scratch, down to that of one row, it works in smaller parts with equal results.
void fused_moe(cudaStream_t stream, const void* x, const float* router_logits, const DeviceExperts& experts,
               const DeviceBatch& batch, int32_t rows, float* hidden, void* workspace, size_t workspace_bytes);

/// The rotary frequencies in device memory.
struct DeviceRotary {
  const float* inverse_frequency = nullptr;  // [rotary_dim / 2]
  int32_t rotary_dim = 0;
  float attention_factor = 1.0f;
  /// The rotated query at position p is multiplied by 1 + query_beta · ln(1 + floor((p + query_offset) /
  /// query_period)).
  float query_beta = 0.0f;
  int32_t query_period = 1;
  int32_t query_offset = 0;
};
/// The norms of heads before they are rotated and stored, and the source of values.
struct HeadNorms {
  const float* q = nullptr;  // [head_dim], with kLayer [heads·head_dim], or null: no norm of q and k
  const float* k = nullptr;  // [head_dim], with kLayer [kv_heads·head_dim], or null
  float epsilon = 0.0f;
  tensor::HeadNorm kind = tensor::HeadNorm::kRms;
  bool of_values = false;        ///< values are divided by their root mean square
  bool values_are_keys = false;  ///< a value is its head's key before norm and rotation, and qkv has no v
  bool queries_only = false;     ///< qkv has no k and no v, and nothing is stored
};
/// Splits qkv (f32) [rows, (heads + 2·kv_heads)·head_dim]: q goes to `q` (bf16) [rows, heads·head_dim], k and v to the
/// pages. A non-finite value is stored as zeros with a NaN key. Codes follow from the key and value in f32; magnitudes
/// from 2^126 on count as non-finite there.
void rotary_store_kv(cudaStream_t stream, const float* qkv, int32_t head_count, const DeviceRotary& rotary,
                     const HeadNorms& norms, const DeviceBatch& batch, const BatchBounds& bounds,
                     const DeviceKvCache& cache, int32_t layer, void* q);

/// The heads and the mask of one layer's attention.
struct AttentionSizes {
  int32_t head_count = 0;
  float scale = 0.0f;
  int32_t sliding_window = 0;    ///< 0: none
  int32_t chunk_size = 0;        ///< above 0: keys before the last multiple of it up to the row are not visible
  bool causal = true;            ///< else every key of the sequence is visible; without a window or chunks
  float soft_cap = 0.0f;         ///< scaled scores s become soft_cap · tanh(s / soft_cap); 0: they do not
  const float* sinks = nullptr;  // [head_count] scores of keys without values, or null
};
/// Returns the scratch bytes of attention for batches within `bounds`. The scratch need not be zeroed.
[[nodiscard]] size_t attention_workspace_bytes(const AttentionSizes& sizes, const DeviceKvCache& cache,
                                               const BatchBounds& bounds);
/// Returns the dynamic shared memory, in bytes, of an attention block over such a cache. Not every device has that
/// much.
[[nodiscard]] size_t attention_shared_bytes(const DeviceKvCache& cache);
/// out (bf16) [rows, heads·head_dim] = attention over the sequence's pages: up to the own position included, or over
/// all keys where it is not causal.
void attention(cudaStream_t stream, const void* q, const AttentionSizes& sizes, const DeviceBatch& batch,
               const BatchBounds& bounds, const DeviceKvCache& cache, int32_t layer, void* out, void* workspace);

/// The sampling parameters of one row; formulas: docs/sampling.md. Ranges are [begin, end) into the lists of
/// SampleInputs.
struct SampleRow {
  float temperature = 1.0f;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  int32_t top_k = 0;
  int32_t top_logprobs = -1;
  uint64_t seed = 0;
  uint64_t position = 0;
  int32_t bias_begin = 0;
  int32_t bias_end = 0;
  int32_t banned_begin = 0;  ///< ids that are masked now (min_tokens)
  int32_t banned_end = 0;
  int32_t prompt_begin = 0;  ///< tokens of the prompt, then of the output; both empty without penalties
  int32_t prompt_end = 0;
  int32_t output_end = 0;   ///< the output's tokens are [prompt_end, output_end)
  int32_t mask_begin = -1;  ///< first word of the token mask, one bit per id; -1: all ids are allowed
};
/// The inputs of sampling, in device memory. Ids outside the vocabulary are ignored.
struct SampleInputs {
  const SampleRow* rows = nullptr;  // [rows]
  const int32_t* bias_tokens = nullptr;
  const float* bias_values = nullptr;
  const int32_t* banned_tokens = nullptr;
  const int32_t* history_tokens = nullptr;
  const uint32_t* mask_words = nullptr;
};
/// The result for one row. `fault` has the values of tensor::LogitFault. Log-probabilities are of the raw logits.
struct SampleOutput {
  int32_t fault = 0;
  int32_t token = 0;
  float logprob = 0.0f;
  int32_t rank = 0;
  int32_t top_count = 0;  ///< entries of this row's top list
};
/// Maximum of alternatives per row.
inline constexpr int32_t kMaxTopLogprobs = 1024;
/// The results in device memory: outputs [rows] and top lists [rows, top_capacity], descending, ties by lower id. The
/// lists may be null when top_capacity is 0. It is at most kMaxTopLogprobs and truncates longer lists.
struct SampleOutputs {
  SampleOutput* rows = nullptr;
  int32_t* top_tokens = nullptr;
  float* top_logprobs = nullptr;
  int32_t top_capacity = 0;
};
/// Maximum of ids that sample and score support.
inline constexpr int32_t kMaxVocab = 1 << 21;
/// Returns the scratch bytes of sample and score for up to `rows` rows of this vocabulary. The scratch is zeroed before
/// its first use.
[[nodiscard]] size_t sample_workspace_bytes(int32_t rows, int32_t vocab);
/// Samples one token per row of logits (f32) [rows, stride], of which the first `vocab` can be sampled.
void sample(cudaStream_t stream, const float* logits, int64_t stride, int32_t vocab, int32_t rows,
            const SampleInputs& inputs, const SampleOutputs& outputs, void* workspace);
/// Computes the log-probability and rank of targets[r], an id of the vocabulary, in row r, with the top_counts[r] most
/// probable alternatives.
void score(cudaStream_t stream, const float* logits, int64_t stride, int32_t vocab, int32_t rows,
           const int32_t* targets, const int32_t* top_counts, const SampleOutputs& outputs, void* workspace);

}  // namespace millrace::cuda
