#pragma once

#include <memory>
#include <span>

#include "cpu/device.h"
#include "cpu/kv_cache.h"
#include "cpu/latent_expansion.h"
#include "cpu/packed_weight.h"
#include "tensor/backend.h"

/// The ops of tensor::Backend, each in the file of its name. Contracts: tensor/backend.h.
namespace millrace::cpu {

/// An embedding table that reads its rows from the checkpoint's mapping, or lets a function decode them from there.
class CpuEmbeddingTable final : public tensor::EmbeddingTable {
 public:
  explicit CpuEmbeddingTable(const tensor::HostTensor& table) : table_(table) {}
  CpuEmbeddingTable(int64_t rows, int64_t cols, tensor::ReadRowsFn read)
      : table_{.name = "embedding", .shape = {rows, cols}}, read_(std::move(read)) {}
  [[nodiscard]] int64_t rows() const { return table_.shape[0]; }
  [[nodiscard]] int64_t cols() const { return table_.shape[1]; }
  /// Reads a row as f32 [cols].
  void read_row(const Kernels& kernels, int64_t row, float* out) const;

 private:
  tensor::HostTensor table_;  // without data where `read_` is set
  tensor::ReadRowsFn read_;
};

void embed(Device& device, const CpuEmbeddingTable& table, std::span<const TokenId> tokens, tensor::Matrix hidden);
void add_embedding(Device& device, const CpuEmbeddingTable& table, std::span<const int32_t> indices,
                   tensor::Matrix hidden);
void layer_norm(Device& device, tensor::Matrix hidden, const CpuVector& weight, const CpuVector* bias, float epsilon,
                bool in_place, tensor::Matrix out);
void convert(Device& device, tensor::Matrix hidden, tensor::Matrix out);
void scale(Device& device, tensor::Matrix matrix, float factor);
void soft_cap(Device& device, tensor::Matrix matrix, float cap);
void gelu_tanh_mul(Device& device, tensor::Matrix in, tensor::Matrix out);
void gelu_tanh_gate(Device& device, tensor::Matrix gates, tensor::Matrix factors, int64_t first, tensor::Matrix out);
void scaled_silu_mul(Device& device, tensor::Matrix in, float factor, tensor::Matrix out);
void relu_squared(Device& device, tensor::Matrix in, tensor::Matrix out);
void add_scaled_sums(Device& device, tensor::Matrix sums, const CpuVector* bias, const CpuVector* norm, float epsilon,
                     float factor, tensor::Matrix hidden);
void gelu(Device& device, tensor::Matrix in, tensor::Matrix out);
void rms_norm(Device& device, tensor::Matrix hidden, const CpuVector& weight, float epsilon, tensor::Matrix out);
void rms_norm_in_place(Device& device, tensor::Matrix values, const CpuVector& weight, float epsilon);
void matmul(Device& device, tensor::Matrix x, const CpuPackedWeight& weight, const CpuVector* bias, tensor::Matrix out);
void matmul_add(Device& device, tensor::Matrix x, const CpuPackedWeight& weight, const CpuVector* bias,
                tensor::Matrix hidden);
void row_magnitudes(Device& device, tensor::Matrix x, tensor::Matrix out);
void matmul_integers(Device& device, tensor::Matrix x, const CpuPackedWeight& weight, tensor::Matrix magnitudes,
                     tensor::IntMatrix sums);
void scale_integers(Device& device, tensor::IntMatrix sums, const CpuPackedWeight& weight, tensor::Matrix magnitudes,
                    tensor::Matrix out);
void add_sums(Device& device, tensor::Matrix sums, const CpuVector* bias, tensor::Matrix hidden);
void add_gated_sums(Device& device, tensor::Matrix sums, tensor::Matrix gates, tensor::Matrix hidden);
void matmul_silu_mul(Device& device, tensor::Matrix x, const CpuPackedWeight& weight, tensor::Matrix out);
void rotary_store_kv(Device& device, tensor::Matrix qkv, const tensor::AttentionShape& shape,
                     const tensor::RotaryTable& rotary, const CpuVector* q_norm, const CpuVector* k_norm,
                     float norm_epsilon, const tensor::BatchLayout& batch, CpuKvCache& cache, int32_t layer,
                     tensor::Matrix q);
void attention(Device& device, tensor::Matrix q, const tensor::AttentionShape& shape, const tensor::BatchLayout& batch,
               const CpuKvCache& cache, int32_t layer, tensor::Matrix out);
/// Stores the latents and keys of a batch; see tensor::Backend::store_latent.
void store_latent(Device& device, tensor::Matrix kv, const tensor::LatentShape& shape,
                  const tensor::RotaryTable& rotary, const CpuVector& norm, float norm_epsilon,
                  const tensor::BatchLayout& batch, CpuKvCache& cache, int32_t layer);
/// Computes tensor::Backend::latent_attention, or sparse_latent_attention where `chosen` has columns.
void latent_attention(Device& device, tensor::Matrix q, const tensor::LatentShape& shape,
                      const tensor::RotaryTable& rotary, const CpuLatentExpansion& expansion, tensor::IntMatrix chosen,
                      const tensor::BatchLayout& batch, const CpuKvCache& cache, int32_t layer, tensor::Matrix out);
/// out (compute) [T, heads·latent_dim] = attention of queries (compute) [T, heads·key_dim] over the latents of a layer,
/// or over the chosen ones.
void attend_to_latents(Device& device, tensor::Matrix q, const tensor::LatentShape& shape, tensor::IntMatrix chosen,
                       const tensor::BatchLayout& batch, const CpuKvCache& cache, int32_t layer, tensor::Matrix out);
void store_index_key(Device& device, tensor::Matrix key, const tensor::IndexerShape& shape,
                     const tensor::RotaryTable& rotary, const CpuVector& norm, const CpuVector& norm_bias,
                     float norm_epsilon, const tensor::BatchLayout& batch, CpuKvCache& cache, int32_t layer);
void choose_tokens(Device& device, tensor::Matrix q, tensor::Matrix weights, const tensor::IndexerShape& shape,
                   const tensor::RotaryTable& rotary, const tensor::BatchLayout& batch, const CpuKvCache& cache,
                   int32_t layer, tensor::IntMatrix chosen);
void gate(Device& device, tensor::Matrix values, tensor::Matrix gates);
void causal_conv(Device& device, tensor::Matrix in, const tensor::ConvShape& shape, const CpuVector& weight,
                 const CpuVector* bias, const tensor::BatchLayout& batch, CpuKvCache& states, int32_t layer,
                 tensor::Matrix out);
void short_conv(Device& device, tensor::Matrix in, const tensor::ConvShape& shape, const CpuVector& weight,
                const CpuVector* bias, const tensor::BatchLayout& batch, CpuKvCache& states, int32_t layer,
                tensor::Matrix out);
void delta_net(Device& device, const tensor::DeltaNetInputs& in, const tensor::DeltaNetShape& shape,
               const CpuVector& decay, const CpuVector& step_bias, const tensor::BatchLayout& batch, CpuKvCache& states,
               int32_t layer, tensor::Matrix out);
void state_space(Device& device, tensor::Matrix mixed, tensor::Matrix steps, const tensor::StateSpaceShape& shape,
                 const CpuVector& decay, const CpuVector& step_bias, const CpuVector& skip,
                 const tensor::BatchLayout& batch, CpuKvCache& states, int32_t layer, tensor::Matrix out);
void gated_rms_norm(Device& device, tensor::Matrix in, tensor::Matrix gates, int64_t first_gate,
                    const tensor::GatedNorm& norm, tensor::Matrix out);
void gather_rows(Device& device, tensor::Matrix in, std::span<const int32_t> rows, tensor::Matrix out);
void copy_columns(Device& device, tensor::Matrix in, int64_t in_begin, tensor::Matrix out, int64_t out_begin,
                  int64_t cols);
void sample(Device& device, tensor::Matrix logits, int32_t vocab, std::span<const tensor::SampleSpec> specs,
            std::span<tensor::SampleResult> results);
void score(Device& device, tensor::Matrix logits, int32_t vocab, std::span<const TokenId> targets,
           std::span<const int32_t> top_counts, std::span<tensor::ScoreResult> results);

/// out = (in - mean) / sqrt(variance + epsilon) · weight + bias of `width` values. `bias` may be null; `out` may be
/// `in`.
void layer_norm_row(const float* in, const float* weight, const float* bias, double epsilon, int64_t width, float* out);

/// out = max(in, 0)². `out` may be `in`.
void square_relu(const float* in, float* out, int64_t count);

/// CHECKs that the matrix is row-major, of `dtype`, and has these sides.
void check_matrix(const char* name, const tensor::Matrix& matrix, tensor::DType dtype, int64_t rows, int64_t cols);
/// CHECKs that the layout is consistent, has `rows` rows, and names pages of the cache only.
void check_batch(const tensor::BatchLayout& batch, int64_t rows, const CpuKvCache& cache);

template <class T>
[[nodiscard]] T* row_of(const tensor::Matrix& matrix, int64_t row) {
  return reinterpret_cast<T*>(matrix.data + static_cast<size_t>(row * matrix.cols) * tensor::size_of(matrix.dtype));
}

}  // namespace millrace::cpu
