#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "tensor/backend.h"
#include "tensor/host_tensor.h"
#include "tensor/sampling.h"
#include "tensor/w8.h"

/// The ops of tensor::Backend in plain loops over f32 arrays with f64 sums: slow and obviously right. Tests check every
/// backend against them; nothing in the server calls them.
namespace millrace::reference {

using Values = std::vector<float>;

/// The elements of a host tensor of any dtype as f32.
[[nodiscard]] Values to_floats(const tensor::HostTensor& tensor);
/// What a matrix of 8 bits stands for.
[[nodiscard]] Values to_floats(const tensor::W8Matrix& matrix);
/// Each value rounded to `dtype` and back.
[[nodiscard]] Values rounded(Values values, tensor::DType dtype);

/// What rows of `width` values stand for once each group of 32, or of so many, is rounded to int8: q = round(x · (127 /
/// largest)), ties to even, times the scale largest / 127, all in f32.
[[nodiscard]] Values rounded_to_int8(const Values& rows, int64_t width, int64_t group = tensor::kW8Group);
/// Rows times a matrix with a scale per row, bit for bit: rows x [rows, cols] are rounded to int8 by a scale each as
/// above, Σ q·w is exact, and the result is f32(Σ) · (scale of the matrix's row · scale of x's row). Of finite values.
[[nodiscard]] Values matmul_int8(const Values& x, const tensor::W8Matrix& matrix);

/// [tokens, width]; a token outside the table gives zeros.
[[nodiscard]] Values embed(const tensor::HostTensor& table, std::span<const TokenId> tokens);
/// in [rows, width], weight [width].
[[nodiscard]] Values rms_norm(const Values& in, const Values& weight, double epsilon);
/// x [rows, k], weight [n, k], bias [n] or empty → [rows, n].
[[nodiscard]] Values matmul(const Values& x, const Values& weight, const Values& bias, int64_t k, int64_t n);
/// silu(gate) · up, element by element.
[[nodiscard]] Values silu_mul(const Values& gate, const Values& up);
/// The experts of one row of router logits and their weights, by falling logit, of equal ones by rising number.
[[nodiscard]] std::vector<std::pair<size_t, double>> route(std::span<const float> logits,
                                                           const tensor::Routing& routing);
struct Expert {
  Values gate;  // [inner, hidden]
  Values up;    // [inner, hidden]
  Values down;  // [hidden, inner]
};
/// What rows of `width` values become before a product reads them.
using RoundFn = std::function<Values(const Values& rows, int64_t width)>;
struct FusedMoe {
  Values sums;   ///< [rows, hidden], what is added to the residual
  Values jumps;  ///< [rows, hidden], how much further off a sum may be because a feature rounded to the other side
};
/// x [rows, hidden], router_logits [rows, experts]. A sum of jumps takes every feature that `feature_error`, what
/// sums in f32 are off by, could carry over an edge of its rounding, each times the size of its weight.
[[nodiscard]] FusedMoe fused_moe(const Values& x, const Values& router_logits, std::span<const Expert> experts,
                                 const tensor::Routing& routing, const RoundFn& round, float feature_error);
/// Turns the pairs (i, i + rotary_dim / 2) of one head [head_dim] to `position`.
void rotate(std::span<float> head, const Values& inverse_frequency, float attention_factor, int64_t position);

/// The keys and values of one sequence so far: [tokens, kv_heads, head_dim] each.
struct History {
  Values keys;
  Values values;
};
struct AttentionSizes {
  int32_t head_count = 0;
  int32_t kv_head_count = 0;
  int32_t head_dim = 0;
  double scale = 0.0;
  int32_t sliding_window = 0;
};
/// One query row [heads, head_dim] at `position` over the history → [heads, head_dim].
[[nodiscard]] Values attention(std::span<const float> q, int64_t position, const History& history,
                               const AttentionSizes& sizes);

/// The distribution of one draw, in the order and with the definitions of docs/sampling.md; ids ascend, all have a
/// positive probability.
[[nodiscard]] std::vector<std::pair<TokenId, double>> sampling_distribution(std::span<const float> logits,
                                                                            const tensor::SampleSpec& spec);
/// log_softmax of one row.
[[nodiscard]] std::vector<double> log_softmax(std::span<const float> logits);

}  // namespace millrace::reference
