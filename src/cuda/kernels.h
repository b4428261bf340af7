#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

/// The ops of tensor::Backend on device memory: each function launches kernels on `stream` and returns; it neither
/// allocates nor waits. What varies from batch to batch is read from device memory, so a captured graph can be replayed
/// with new contents; arguments hold upper bounds only. Pointers are device pointers, at least 16-byte aligned.
///
/// Compute dtype is bf16 (products' inputs, q, k, v, pages), the residual stream f32, sums f32. The order of every sum
/// follows from the model's shapes alone: a row's bits depend neither on the other rows nor on the bounds.
///
/// Errors: a refused launch throws std::runtime_error with the kernel's name; a bound that a kernel cannot meet throws
/// std::invalid_argument.
namespace millrace::cuda {

/// Loads every kernel onto the current device, at start-up: a driver that loads one when it is first launched may wait
/// for what runs, and so for a receive whose data never comes. Throws where the device cannot run one.
void load_kernels();

/// Keys of a sequence, from key 0 on, whose part of a row's attention is one partial result (docs/cuda.md).
inline constexpr int32_t kSplitKeys = 256;
/// Sequences of more rows make blocks enough without being divided by splits.
inline constexpr int32_t kMaxSplitKvRows = 16;
/// What a sequence of so many rows, or none, and `context` tokens with them adds to DeviceBatch::split_begin.
[[nodiscard]] constexpr int32_t splits_of(int32_t rows, int32_t context) {
  return rows <= kMaxSplitKvRows ? (context + kSplitKeys - 1) / kSplitKeys : 0;
}

/// A ragged batch, all in device memory; contract: tensor::BatchLayout. Rows from row_begin[*sequence_count] on belong
/// to nobody: ops that look at sequences leave them alone, the others compute something harmless.
struct DeviceBatch {
  const int32_t* sequence_count = nullptr;  // [1]
  const int32_t* row_begin = nullptr;       // [sequences + 1]
  const int32_t* prefix = nullptr;          // [sequences]
  const int32_t* split_begin = nullptr;     // [sequences + 1] sums of splits_of
  const int32_t* page_begin = nullptr;      // [sequences + 1]
  const uint32_t* pages = nullptr;          // [page_begin[sequences]]
};

/// Upper bounds of what a batch holds. They size grids; results do not depend on them.
struct BatchBounds {
  int32_t rows = 0;  ///< in all
  int32_t sequences = 0;
  int32_t sequence_rows = 0;  ///< of one sequence; 1 when all decode
  int32_t splits = 0;         ///< in all
};

/// Channels of the largest heads that attention takes.
inline constexpr int32_t kMaxHeadDim = 256;

/// Pages of KV: page p begins at data + p · kv_page_bytes; bf16 [layer][K|V][kv_head][token][channel_stride], so that
/// one layer of one page is contiguous. Channels from head_dim to channel_stride are zeros.
struct DeviceKvCache {
  void* data = nullptr;
  int32_t layer_count = 0;
  int32_t kv_head_count = 0;
  int32_t head_dim = 0;  ///< at most kMaxHeadDim
  int32_t page_size = 0;
};
/// head_dim rounded up to whole 16-byte loads.
[[nodiscard]] constexpr int32_t channel_stride(int32_t head_dim) {
  return (head_dim + 7) / 8 * 8;
}
[[nodiscard]] constexpr size_t kv_layer_bytes(const DeviceKvCache& cache) {
  return size_t{4} * static_cast<size_t>(cache.kv_head_count) * static_cast<size_t>(cache.page_size) *
         static_cast<size_t>(channel_stride(cache.head_dim));
}
[[nodiscard]] constexpr size_t kv_page_bytes(const DeviceKvCache& cache) {
  return kv_layer_bytes(cache) * static_cast<size_t>(cache.layer_count);
}

/// Which way pages are copied: from the cache to the host, or from there.
enum class PageCopyDirection : int32_t { kToHost, kToDevice };
/// Pages of a cache and the address of each in pinned memory of the host, 16-byte aligned and laid out as the page.
/// They travel with the launch, so they need not outlive the call.
struct PageCopyList {
  static constexpr int32_t kMaxPages = 256;
  int32_t count = 0;
  uint32_t page[kMaxPages] = {};
  void* host[kMaxPages] = {};
};
/// Layers [first_layer, first_layer + layer_count) of all the pages in one launch, which takes few multiprocessors.
void copy_pages(cudaStream_t stream, PageCopyDirection way, const DeviceKvCache& cache, int32_t first_layer,
                int32_t layer_count, const PageCopyList& pairs);

/// What multiplies. kMma is for any device, kWgmma for compute capability 9.0 where sm_90a was compiled; what a device
/// makes of a sum's rounding may differ between the two, so that all products of a stage go by one of them.
enum class MatrixInstruction : int32_t { kMma, kWgmma };
/// Whether the current device has kWgmma and this build its kernels.
[[nodiscard]] bool has_wgmma();

/// A packed weight: bf16 [panel of 64 rows][step of 64 inputs][row 64][chunk 8][8], chunks of a row turned by
/// chunk_offset (packed_weight.h); rows and inputs beyond the matrix are zeros. Rows are features; with `gate_up`, rows
/// 16i…16i+7 are gate features 8i…8i+7 and the eight rows after them the up features.
struct DeviceWeight {
  const void* data = nullptr;
  int32_t out_features = 0;
  int32_t in_features = 0;
  bool gate_up = false;
  MatrixInstruction by = MatrixInstruction::kMma;
};
[[nodiscard]] size_t packed_weight_bytes(int32_t out_features, int32_t in_features, bool gate_up);

enum class SourceType : int32_t { kF32, kBF16, kF16 };
enum class PackAs : int32_t { kRows, kGate, kUp };
/// Packs a dense row-major matrix [rows, in_features] of any alignment that its dtype allows into `packed`, which was
/// zeroed: its rows become features first_feature… (kRows), or gate or up features. Stacks take one call per part.
void pack_weight(cudaStream_t stream, const void* source, SourceType type, int32_t rows, int32_t in_features,
                 int32_t first_feature, PackAs as, void* packed);
/// Converts `count` elements to bf16 (an embedding table), rounding to nearest even.
void convert_to_bf16(cudaStream_t stream, const void* source, SourceType type, size_t count, void* bf16);

/// hidden (f32) [rows, width] = table (bf16) [vocab, width] [tokens[r]]; a token outside the table gives zeros.
void embed(cudaStream_t stream, const void* table, int32_t vocab, int32_t width, const int32_t* tokens, int32_t rows,
           float* hidden);
/// out (bf16) [rows, width] = rms_norm(hidden (f32)) · weight (f32) [width].
void rms_norm(cudaStream_t stream, const float* hidden, const float* weight, float epsilon, int32_t rows, int32_t width,
              void* out);
/// out [count, row_bytes] = in[rows[r]]; a negative index gives zeros. row_bytes is even.
void gather_rows(cudaStream_t stream, const void* in, size_t row_bytes, const int32_t* rows, int32_t count, void* out);

/// Scratch of the three products for up to `rows` rows. It must be zero before its first use; each product leaves it
/// fit for the next on the same stream, of any shape that the bytes suffice for.
[[nodiscard]] size_t matmul_workspace_bytes(int32_t out_features, int32_t in_features, bool gate_up, int32_t rows);
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

/// The experts of a sparse layer; contract: tensor::Routing. Their weights follow one another without gaps, each of
/// packed_weight_bytes: gate and up [intermediate, hidden], packed as gate_up, and down [hidden, intermediate].
struct DeviceExperts {
  const void* gate_up = nullptr;
  const void* down = nullptr;
  int32_t count = 0;  ///< at most kMaxExperts
  int32_t per_row = 0;
  bool renormalize = false;
  int32_t hidden = 0;
  int32_t intermediate = 0;
  MatrixInstruction by = MatrixInstruction::kMma;
};
/// The most experts that a layer can have.
inline constexpr int32_t kMaxExperts = 512;
/// Scratch of fused_moe for up to `rows` rows, of which it takes parts where that is above 256 MiB. It must be zero
/// before its first use; each call leaves it fit for the next on the same stream, with any experts and rows.
[[nodiscard]] size_t fused_moe_workspace_bytes(const DeviceExperts& experts, int32_t rows);
/// hidden (f32) [rows, hidden] += Σ p_e · (silu(x·Wg_eᵀ) · (x·Wu_eᵀ))·Wd_eᵀ over the experts e that the row's router
/// logits (f32) [rows, experts] name, in the order of their numbers; x (bf16) [rows, hidden]. Rows of nobody stay as
/// they are, and no expert is read for them. `rows` is an upper bound of those that sequences own. With fewer bytes of
/// scratch, down to those of one row, it takes smaller parts; results do not depend on them.
void fused_moe(cudaStream_t stream, const void* x, const float* router_logits, const DeviceExperts& experts,
               const DeviceBatch& batch, int32_t rows, float* hidden, void* workspace, size_t workspace_bytes);

struct DeviceRotary {
  const float* inverse_frequency = nullptr;  // [rotary_dim / 2]
  int32_t rotary_dim = 0;
  float attention_factor = 1.0f;
};
/// From qkv (f32) [rows, (heads + 2·kv_heads)·head_dim]: q to `q` (bf16) [rows, heads·head_dim], k and v into the
/// pages. Norm weights (f32) [head_dim] may be null, both. A value that is no number is stored as zeros under a NaN
/// key.
void rotary_store_kv(cudaStream_t stream, const float* qkv, int32_t head_count, const DeviceRotary& rotary,
                     const float* q_norm, const float* k_norm, float norm_epsilon, const DeviceBatch& batch,
                     const BatchBounds& bounds, const DeviceKvCache& cache, int32_t layer, void* q);

struct AttentionSizes {
  int32_t head_count = 0;
  float scale = 0.0f;
  int32_t sliding_window = 0;  ///< 0: none
};
/// Scratch of attention for batches within `bounds`; it need not be zero.
[[nodiscard]] size_t attention_workspace_bytes(const AttentionSizes& sizes, const DeviceKvCache& cache,
                                               const BatchBounds& bounds);
/// Dynamic shared memory that a block of attention takes for heads of so many channels; not every device has so much.
[[nodiscard]] size_t attention_shared_bytes(int32_t head_dim);
/// out (bf16) [rows, heads·head_dim]: causal attention over the sequence's pages, own position included.
void attention(cudaStream_t stream, const void* q, const AttentionSizes& sizes, const DeviceBatch& batch,
               const BatchBounds& bounds, const DeviceKvCache& cache, int32_t layer, void* out, void* workspace);

/// How one row is drawn; definitions: docs/sampling.md. Ranges are [begin, end) into the lists of SampleInputs.
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
  int32_t banned_begin = 0;  ///< ids that cannot be drawn now (min_tokens)
  int32_t banned_end = 0;
  int32_t prompt_begin = 0;  ///< tokens of the prompt, then of the output; both empty when no penalty is set
  int32_t prompt_end = 0;
  int32_t output_end = 0;   ///< the output's tokens are [prompt_end, output_end)
  int32_t mask_begin = -1;  ///< first of the words of ids that can be drawn now, a bit per id; -1: all can
};
/// All in device memory. Ids outside the vocabulary are ignored.
struct SampleInputs {
  const SampleRow* rows = nullptr;  // [rows]
  const int32_t* bias_tokens = nullptr;
  const float* bias_values = nullptr;
  const int32_t* banned_tokens = nullptr;
  const int32_t* history_tokens = nullptr;
  const uint32_t* mask_words = nullptr;
};
/// What is told of a row; `fault` has the values of tensor::LogitFault. Log-probabilities are of the raw logits.
struct SampleOutput {
  int32_t fault = 0;
  int32_t token = 0;
  float logprob = 0.0f;
  int32_t rank = 0;
  int32_t top_count = 0;  ///< entries of this row's top list
};
/// The most alternatives that can be asked for.
inline constexpr int32_t kMaxTopLogprobs = 1024;
/// In device memory: outputs [rows]; top lists [rows, top_capacity], descending, ties by lower id; may be null where
/// top_capacity, at most kMaxTopLogprobs, is 0. Rows that ask for more than the capacity get so many.
struct SampleOutputs {
  SampleOutput* rows = nullptr;
  int32_t* top_tokens = nullptr;
  float* top_logprobs = nullptr;
  int32_t top_capacity = 0;
};
/// The largest vocabulary that sample and score take.
inline constexpr int32_t kMaxVocab = 1 << 21;
/// Scratch of sample and score for up to `rows` rows of this vocabulary; it must be zero before its first use.
[[nodiscard]] size_t sample_workspace_bytes(int32_t rows, int32_t vocab);
/// One draw per row of logits (f32) [rows, stride], the first `vocab` of which can be drawn.
void sample(cudaStream_t stream, const float* logits, int64_t stride, int32_t vocab, int32_t rows,
            const SampleInputs& inputs, const SampleOutputs& outputs, void* workspace);
/// Log-probability and rank of targets[r], an id of the vocabulary, under row r, with the top_counts[r] most probable
/// alternatives.
void score(cudaStream_t stream, const float* logits, int64_t stride, int32_t vocab, int32_t rows,
           const int32_t* targets, const int32_t* top_counts, const SampleOutputs& outputs, void* workspace);

}  // namespace millrace::cuda
