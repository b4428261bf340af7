#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "tensor/backend.h"
#include "tensor/host_tensor.h"
#include "tensor/kv_dtype.h"
#include "tensor/sampling.h"
#include "tensor/sum_shards.h"
#include "tensor/code_matrix.h"
#include "tensor/w8.h"

/// The ops of tensor::Backend as plain loops over f32 arrays with f64 sums: slow and simple. Tests check every backend
/// against them; the server never calls them.
namespace millrace::reference {

using Values = std::vector<float>;

/// Converts a host tensor of any dtype to f32.
[[nodiscard]] Values to_floats(const tensor::HostTensor& tensor);
/// Dequantizes a 4-bit or an 8-bit matrix.
[[nodiscard]] Values to_floats(const tensor::CodeMatrix& matrix);
[[nodiscard]] Values to_floats(const tensor::W8Matrix& matrix);
/// Rounds each value to `dtype` and back.
[[nodiscard]] Values rounded(Values values, tensor::DType dtype);

/// Quantizes rows of `width` values to int8 per group and dequantizes them, all in f32. A value becomes q = round(x ·
/// (127 / largest)), ties to even, times the scale largest / 127.
[[nodiscard]] Values rounded_to_int8(const Values& rows, int64_t width, int64_t group = tensor::kW8Group);
/// Rounds keys or values of heads of `head_dim` channels to the codes of a KV cache. A scale is the bf16 number not
/// below the largest magnitude divided by the largest code: 127 of int8, for 32 channels, or 448 of E4M3, for a head.
/// E4M3 below 2^-6 is zero. kAuto rounds nothing.
[[nodiscard]] Values rounded_to_kv(Values values, int64_t head_dim, tensor::KvDType stored);
/// Multiplies rows by a matrix with a scale per row, bit for bit. Rows of x are quantized to int8, one scale each; Σ
/// q·w is exact. The result is f32(Σ) · (scale of the matrix's row · scale of x's row). Values are finite.
[[nodiscard]] Values matmul_int8(const Values& x, const tensor::W8Matrix& matrix);

/// Returns rows of the table, [tokens, width]. A token outside the table gives zeros.
[[nodiscard]] Values embed(const tensor::HostTensor& table, std::span<const TokenId> tokens);
/// Normalises in [rows, width] by weight [width].
[[nodiscard]] Values rms_norm(const Values& in, const Values& weight, double epsilon);
/// Normalises in [rows, width] to mean 0 and variance 1, then applies weight [width] and bias [width].
[[nodiscard]] Values layer_norm(const Values& in, const Values& weight, const Values& bias, double epsilon);
/// Returns x/2 · (1 + erf(x/√2)), element by element.
[[nodiscard]] Values gelu(const Values& in);
/// Returns x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))) · up for every x of `gate`.
[[nodiscard]] Values gelu_tanh_mul(const Values& gate, const Values& up);
[[nodiscard]] Values scaled_silu_mul(const Values& gate, const Values& up, double factor);
[[nodiscard]] Values relu_squared(const Values& in);
/// Returns cap · tanh(x / cap), element by element.
[[nodiscard]] Values soft_cap(const Values& in, double cap);
/// Multiplies x [rows, k] by weight [n, k] with bias [n] or empty; returns [rows, n].
[[nodiscard]] Values matmul(const Values& x, const Values& weight, const Values& bias, int64_t k, int64_t n);
/// Returns f(gate, up) of the gated activation, element by element.
[[nodiscard]] Values activate(const tensor::GatedActivation& activation, const Values& gate, const Values& up);
/// Returns the experts of one row of router logits with their weights, by descending choice value; of equal values the
/// lower number comes first.
[[nodiscard]] std::vector<std::pair<size_t, double>> route(std::span<const float> logits,
                                                           const tensor::Routing& routing);
/// The weights of one expert.
struct Expert {
  Values gate;  // [inner, hidden]; empty without ExpertOptions::gated
  Values up;    // [inner, hidden]
  Values down;  // [hidden, inner]
  // With ExpertOptions::has_biases:
  Values gate_bias = {};  // [inner]
  Values up_bias = {};    // [inner]
  Values down_bias = {};  // [hidden]
};
/// Rounds rows of `width` values as a GEMM's inputs are rounded.
using RoundFn = std::function<Values(const Values& rows, int64_t width)>;
/// The result of the op and its tolerance.
struct FusedMoe {
  Values sums;   ///< [rows, hidden], to be added to the residual
  Values jumps;  ///< [rows, hidden], further error of a sum when a feature rounds to the other neighbour
};
/// Computes x [rows, hidden] with router_logits [rows, experts]. `feature_error` is the error of sums in f32. `jumps`
/// sums, over the features that this error could carry across a rounding boundary, the size of the change times the
/// weight.
[[nodiscard]] FusedMoe fused_moe(const Values& x, const Values& router_logits, std::span<const Expert> experts,
                                 const tensor::ExpertOptions& options, const RoundFn& round, float feature_error);
/// Returns hidden [rows, width] + sigmoid(gates [rows]) · sums [rows, width].
[[nodiscard]] Values add_gated_sums(const Values& sums, const Values& gates, const Values& hidden);
/// Rotates the pairs (i, i + rotary_dim / 2) of one head [head_dim] to `position`.
void rotate(std::span<float> head, const Values& inverse_frequency, float attention_factor, int64_t position);

/// The keys and values of one sequence so far, [tokens, kv_heads, head_dim] each.
struct History {
  Values keys;
  Values values;
};
/// The dimensions and the mask of one layer's attention.
struct AttentionSizes {
  int32_t head_count = 0;
  int32_t kv_head_count = 0;
  int32_t head_dim = 0;
  double scale = 0.0;
  int32_t sliding_window = 0;
  int32_t chunk_size = 0;        ///< 0: none
  double soft_cap = 0.0;         ///< 0: none
  std::span<const float> sinks;  ///< [head_count], or empty
};
/// Returns 1 + beta · ln(1 + floor(position / period)).
[[nodiscard]] double query_factor(double beta, int64_t period, int64_t position);
/// Computes one query row [heads, head_dim] at `position` over the history; returns [heads, head_dim].
[[nodiscard]] Values attention(std::span<const float> q, int64_t position, const History& history,
                               const AttentionSizes& sizes);

/// The latents of one sequence so far, after their norm, and its rotated keys.
struct LatentHistory {
  Values latents;  // [tokens, latent_dim]
  Values keys;     // [tokens, rope_dim]
};
/// Computes one query row [heads, nope_dim + rope_dim], already rotated, at `position`. Each head's keys and values are
/// expanded from the latents by kv_b [heads, nope_dim + value_dim, latent_dim]. Returns [heads, value_dim].
[[nodiscard]] Values latent_attention(std::span<const float> q, int64_t position, const LatentHistory& history,
                                      const Values& kv_b, const tensor::LatentShape& shape);

/// Returns the scores Σ_h w_h · max(q_h · k, 0) of keys [tokens, head_dim] for one query row [heads, head_dim], already
/// rotated, with weights [heads].
[[nodiscard]] Values index_scores(std::span<const float> q, std::span<const float> weights, const Values& keys,
                                  int64_t head_dim);

/// Returns values · sigmoid(gates), element by element.
[[nodiscard]] Values gate(const Values& values, const Values& gates);
/// Convolves one whole sequence, in [rows, channels], with weight [width, channels] and bias [channels] or empty.
[[nodiscard]] Values causal_conv(const Values& in, const tensor::ConvShape& shape, const Values& weight,
                                 const Values& bias);
/// Returns silu of every element.
[[nodiscard]] Values silu(const Values& in);
/// Returns C · conv(B · x) of one whole sequence, in [rows, B | C | x].
[[nodiscard]] Values short_conv(const Values& in, const tensor::ConvShape& shape, const Values& weight,
                                const Values& bias);
/// The inputs of one whole sequence of a delta net, as tensor::DeltaNetInputs has them.
struct DeltaNetInputs {
  const Values& mixed;
  const Values& gates;
  Values channel_steps = {};
};
/// Computes one whole sequence; returns [rows, value heads, value_dim].
[[nodiscard]] Values delta_net(const DeltaNetInputs& inputs, const tensor::DeltaNetShape& shape, const Values& decay,
                               const Values& step_bias);
/// Computes one whole sequence of mixed [rows, x | B | C] and steps [rows, heads]; returns [rows, heads, head_dim].
[[nodiscard]] Values state_space(const Values& mixed, const Values& steps, const tensor::StateSpaceShape& shape,
                                 const Values& decay, const Values& step_bias, const Values& skip);
/// The numbers of a gated norm.
struct GatedNorm {
  double epsilon = 0.0;
  int64_t group = 0;
  bool gate_first = false;
  double gate_factor = 1.0;
  bool sigmoid = false;
};
/// Normalises groups of channels of in [rows, width] by weight [group] or [width], with gates [rows, width]. An empty
/// weight stands for no norm.
[[nodiscard]] Values gated_rms_norm(const Values& in, const Values& gates, int64_t width, const Values& weight,
                                    const GatedNorm& norm);

/// Returns the distribution of one draw by the order and formulas of docs/sampling.md. Ids ascend; all probabilities
/// are positive.
[[nodiscard]] std::vector<std::pair<TokenId, double>> sampling_distribution(std::span<const float> logits,
                                                                            const tensor::SampleSpec& spec);
/// Returns log_softmax of one row.
[[nodiscard]] std::vector<double> log_softmax(std::span<const float> logits);

}  // namespace millrace::reference
