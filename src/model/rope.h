#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace millrace::model {

/// The rule by which rotary frequencies are scaled.
enum class RopeKind : uint8_t { kDefault, kLinear, kLlama3, kYarn, kLongrope, kDivided, kProportional };

/// How rotary frequencies derive from the base. Members that a kind does not use keep their defaults.
struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  int32_t rotary_dim = 0;                  ///< rotated channels of a head, the first ones; 0: all
  bool interleaved = false;                ///< pairs are channels (2i, 2i + 1): rows of q and k are reordered at load
  double factor = 1.0;                     ///< linear, llama3, yarn
  int32_t original_max_position = 0;       ///< llama3, yarn, longrope
  double low_freq_factor = 1.0;            ///< llama3
  double high_freq_factor = 4.0;           ///< llama3
  double beta_fast = 32.0;                 ///< yarn
  double beta_slow = 1.0;                  ///< yarn
  std::optional<double> attention_factor;  ///< yarn, longrope
  std::optional<double> mscale;            ///< yarn; used only together with mscale_all_dim
  std::optional<double> mscale_all_dim;    ///< yarn
  bool truncate = true;                    ///< yarn: round the ramp's bounds outwards to whole channels
  int32_t rotated_pairs = 0;               ///< proportional: the first pairs of a head, which alone are rotated
  std::vector<double> divisors;            ///< longrope, divided: of each pair's frequency
  std::vector<double> near_divisors;       ///< longrope: those of contexts up to original_max_position
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

/// The frequencies of one model and the factor of its attention.
struct RotaryFrequencies {
  std::vector<float> inverse;     // [rotary_dim / 2], radians per position
  float attention_factor = 1.0f;  ///< multiplies cos and sin
};

/// Computes the frequencies for an even `rotary_dim`. Sources: llama3, the Llama 3.1 report; yarn, Peng et al., "YaRN",
/// arXiv 2309.00071; longrope, Ding et al., "LongRoPE", arXiv 2402.13753.
[[nodiscard]] RotaryFrequencies rotary_frequencies(const RopeConfig& rope, int32_t rotary_dim);

}  // namespace millrace::model
