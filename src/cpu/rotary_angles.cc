#include "cpu/rotary_angles.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace millrace::cpu {
namespace {

/// Tables that are kept: a model has one or two, for global and local layers. Further ones are recomputed.
constexpr size_t kKeptAngles = 4;

/// Computes angles as the f32 product position · frequency, like the reference models. cos and sin use double
/// precision, since f32 argument reduction fails at position 10^6.
void compute_angles(Device& device, const float* frequencies, std::vector<int32_t> positions, RotaryAngles& angles) {
  const auto half = static_cast<size_t>(angles.rotary_dim / 2);
  angles.positions.clear();  // until the angles are there: memory may be short
  angles.cos.resize(positions.size() * half);
  angles.sin.resize(positions.size() * half);
  device.pool.run_ranges(static_cast<int64_t>(positions.size()), [&](int64_t begin, int64_t end, int) {
    for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) {
      for (size_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(positions[row]) * frequencies[i];
        angles.cos[row * half + i] = static_cast<float>(std::cos(static_cast<double>(angle))) * angles.factor;
        angles.sin[row * half + i] = static_cast<float>(std::sin(static_cast<double>(angle))) * angles.factor;
      }
    }
  });
  angles.positions = std::move(positions);
}

}  // namespace

std::vector<int32_t> positions_of(const tensor::BatchLayout& batch) {
  std::vector<int32_t> positions;
  positions.reserve(static_cast<size_t>(batch.row_count()));
  for (size_t s = 0; s < batch.sequence_count(); ++s) {
    for (int32_t row = batch.row_begin[s]; row < batch.row_begin[s + 1]; ++row) {
      positions.push_back(batch.prefix[s] + row - batch.row_begin[s]);
    }
  }
  return positions;
}

const RotaryAngles& angles_for(Device& device, const tensor::RotaryTable& rotary, std::vector<int32_t> positions) {
  const CpuVector& frequencies = as_cpu(*rotary.inverse_frequency);
  CHECK(frequencies.size() == rotary.rotary_dim / 2, "{} rotary frequencies for {} channels", frequencies.size(),
        rotary.rotary_dim);
  std::vector<RotaryAngles>& kept = device.rotary_angles;
  ++device.rotary_clock;
  auto found = std::find_if(kept.begin(), kept.end(), [&](const RotaryAngles& angles) {
    return angles.frequencies == frequencies.serial() && angles.rotary_dim == rotary.rotary_dim &&
           angles.factor == rotary.attention_factor;
  });
  const bool known = found != kept.end();
  if (!known && kept.size() < kKeptAngles) {
    found = kept.emplace(kept.end());
  } else if (!known) {
    found = std::min_element(kept.begin(), kept.end(),
                             [](const auto& a, const auto& b) { return a.last_use < b.last_use; });
  }
  found->last_use = device.rotary_clock;
  if (known && found->positions == positions) return *found;
  found->frequencies = frequencies.serial();
  found->rotary_dim = rotary.rotary_dim;
  found->factor = rotary.attention_factor;
  compute_angles(device, frequencies.data(), std::move(positions), *found);
  return *found;
}

float query_factor(const tensor::RotaryTable& rotary, int32_t position) {
  if (rotary.query_beta == 0.0f) return 1.0f;
  const float periods =
      std::floor(static_cast<float>(position + rotary.query_offset) / static_cast<float>(rotary.query_period));
  return 1.0f + rotary.query_beta * std::log(1.0f + periods);
}

}  // namespace millrace::cpu
