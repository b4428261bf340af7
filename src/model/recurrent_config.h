#pragma once

#include <cstdint>
#include <variant>

/// The recurrent mixers of layers, with attention or in its place. They keep a state of fixed size per sequence.
namespace millrace::model {

/// The gated delta net (arXiv 2412.06464). Per value head, with its key head's q and k of unit length: S ← e^g·S; S ← S
/// + k ⊗ β(v − Sᵀk); o = Sᵀq. A short causal convolution precedes q, k and v; a gated norm follows o.
struct DeltaNetConfig {
  int32_t key_head_count = 0;    ///< divides value_head_count
  int32_t value_head_count = 0;  ///< value heads j·r, …, j·r + r - 1 use key head j
  int32_t key_dim = 0;           ///< of a head
  int32_t value_dim = 0;         ///< of a head
  int32_t conv_width = 0;        ///< tokens that the convolution sees
  /// The net is Kimi Delta Attention (arXiv 2510.26692): g is a vector over the channels of a key, and the gate of the
  /// output is a sigmoid. As many key heads as value heads.
  bool channel_decay = false;
  int32_t gate_rank = 0;  ///< with channel_decay: rows of Wa, with which g and gates take Wb · Wa · x
  [[nodiscard]] int64_t key_width() const { return int64_t{key_head_count} * key_dim; }
  [[nodiscard]] int64_t value_width() const { return int64_t{value_head_count} * value_dim; }
  friend bool operator==(const DeltaNetConfig&, const DeltaNetConfig&) = default;
};

/// Numbers that multiply the parts of a Mamba-2 projection.
struct MambaFactors {
  float gate = 1.0f;  ///< of z
  float x = 1.0f;
  float b = 1.0f;
  float c = 1.0f;
  float step = 1.0f;  ///< of dt, before its bias is added
  friend bool operator==(const MambaFactors&, const MambaFactors&) = default;
};

/// Where Mamba-2 normalises y.
enum class MambaNorm : uint8_t {
  kAfterGate,   ///< norm(y · silu(z))
  kBeforeGate,  ///< norm(y) · silu(z)
  kNone,        ///< y · silu(z)
};

/// The selective state space of Mamba-2 (arXiv 2405.21060). Per head, with its group's B and C: h ← e^{Δ·A}·h + Δ·x ⊗
/// B; y = h·C + D·x. A short causal convolution precedes x, B and C; a gate, usually with a norm per group, follows y.
struct MambaConfig {
  int32_t head_count = 0;
  int32_t head_dim = 0;
  int32_t group_count = 0;  ///< of B and C; divides head_count
  int32_t state_dim = 0;    ///< values of B and C per group
  int32_t conv_width = 0;
  bool conv_bias = false;
  bool input_bias = false;         ///< of the projection to z, x, B, C and dt
  bool output_bias = false;        ///< of the output's projection
  float input_bias_factor = 1.0f;  ///< multiplies the input's biases as they are loaded
  float min_step = 0.0f;           ///< Δ is clamped to [min_step, max_step]
  float max_step = 0.0f;
  MambaNorm norm = MambaNorm::kAfterGate;
  MambaFactors factors;
  float output_factor = 1.0f;  ///< multiplies what the mixer adds
  [[nodiscard]] int64_t inner_width() const { return int64_t{head_count} * head_dim; }
  [[nodiscard]] int64_t group_width() const { return int64_t{group_count} * state_dim; }
  friend bool operator==(const MambaConfig&, const MambaConfig&) = default;
};

/// The gated short convolution of LFM2: [B, C, x] = Win·n; y = Wout·(C · conv(B · x)).
struct ShortConvConfig {
  int32_t width = 0;  ///< channels
  int32_t conv_width = 0;
  bool bias = false;  ///< of both projections and the convolution
  friend bool operator==(const ShortConvConfig&, const ShortConvConfig&) = default;
};

using RecurrentConfig = std::variant<DeltaNetConfig, MambaConfig, ShortConvConfig>;

/// Returns the rows of a head's state; 0 for a mixer without heads.
[[nodiscard]] inline int32_t state_rows(const RecurrentConfig& mixer) {
  if (const auto* net = std::get_if<DeltaNetConfig>(&mixer)) return net->key_dim;
  const auto* mamba = std::get_if<MambaConfig>(&mixer);
  return mamba != nullptr ? mamba->state_dim : 0;
}

/// Returns the number that multiplies what a mixer adds.
[[nodiscard]] inline float output_factor(const RecurrentConfig& mixer) {
  const auto* mamba = std::get_if<MambaConfig>(&mixer);
  return mamba != nullptr ? mamba->output_factor : 1.0f;
}

}  // namespace millrace::model
