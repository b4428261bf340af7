#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace millrace::model {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

double llama3_frequency(const RopeConfig& rope, double inverse) {
  const double wavelength = kTwoPi / inverse;
  const double original = rope.original_max_position;
  if (wavelength > original / rope.low_freq_factor) return inverse / rope.factor;
  if (wavelength < original / rope.high_freq_factor || rope.high_freq_factor == rope.low_freq_factor) return inverse;
  const double smooth = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * inverse / rope.factor + smooth * inverse;
}

struct YarnRamp {
  double low = 0.0;
  double high = 0.0;
};

/// Returns the channels that turn beta_fast and beta_slow times over the original context.
YarnRamp yarn_ramp(const RopeConfig& rope, int32_t rotary_dim) {
  const auto channel = [&](double rotations) {
    return rotary_dim * std::log(rope.original_max_position / (rotations * kTwoPi)) / (2.0 * std::log(rope.theta));
  };
  YarnRamp ramp{channel(rope.beta_fast), channel(rope.beta_slow)};
  if (rope.truncate) ramp = {std::floor(ramp.low), std::ceil(ramp.high)};
  ramp.low = std::max(ramp.low, 0.0);
  ramp.high = std::min(ramp.high, rotary_dim - 1.0);
  if (ramp.low == ramp.high) ramp.high += 0.001;
  return ramp;
}

double yarn_frequency(const RopeConfig& rope, const YarnRamp& ramp, double inverse, int32_t pair) {
  const double interpolated = std::clamp((pair - ramp.low) / (ramp.high - ramp.low), 0.0, 1.0);
  return inverse / rope.factor * interpolated + inverse * (1.0 - interpolated);
}

double yarn_attention_factor(const RopeConfig& rope) {
  if (rope.attention_factor) return *rope.attention_factor;
  const auto scale = [&](double mscale) {
    return rope.factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(rope.factor) + 1.0;
  };
  // A zero counts as absent.
  if (rope.mscale.value_or(0.0) != 0.0 && rope.mscale_all_dim.value_or(0.0) != 0.0)
    return scale(*rope.mscale) / scale(*rope.mscale_all_dim);
  return scale(1.0);
}

}  // namespace

RotaryFrequencies rotary_frequencies(const RopeConfig& rope, int32_t rotary_dim) {
  CHECK(rotary_dim > 0 && rotary_dim % 2 == 0, "rotary_dim {} is not even", rotary_dim);
  const YarnRamp ramp = rope.kind == RopeKind::kYarn ? yarn_ramp(rope, rotary_dim) : YarnRamp{};
  RotaryFrequencies frequencies;
  frequencies.inverse.reserve(static_cast<size_t>(rotary_dim / 2));
  for (int32_t pair = 0; pair < rotary_dim / 2; ++pair) {
    double inverse = std::pow(rope.theta, -2.0 * pair / rotary_dim);
    switch (rope.kind) {
      case RopeKind::kDefault: break;
      case RopeKind::kLinear: inverse /= rope.factor; break;
      case RopeKind::kLlama3: inverse = llama3_frequency(rope, inverse); break;
      case RopeKind::kYarn: inverse = yarn_frequency(rope, ramp, inverse, pair); break;
      case RopeKind::kProportional: inverse = pair < rope.rotated_pairs ? inverse / rope.factor : 0.0; break;
      case RopeKind::kLongrope:
      case RopeKind::kDivided: inverse /= rope.divisors[static_cast<size_t>(pair)]; break;
    }
    frequencies.inverse.push_back(static_cast<float>(inverse));
  }
  if (rope.kind == RopeKind::kYarn) frequencies.attention_factor = static_cast<float>(yarn_attention_factor(rope));
  if (rope.kind == RopeKind::kLongrope) frequencies.attention_factor = static_cast<float>(*rope.attention_factor);
  return frequencies;
}

}  // namespace millrace::model
