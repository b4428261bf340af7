#include "cpu/kv_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/dtype.h"

namespace millrace::cpu {
namespace {

constexpr float kMaxInt8 = 127.0f;
constexpr float kMaxE4M3 = 448.0f;
/// Values whose largest magnitude is below this become zero, so that no scale is subnormal.
constexpr float kMinCodedMagnitude = 0x1p-100f;

/// Returns the code of a value of at most 448: the nearest E4M3, ties to even. Magnitudes below its smallest normal
/// number, 2^-6, become zero, so that decoding needs no subnormal numbers.
uint8_t e4m3_code(float value) {
  constexpr uint32_t kMinNormal = 121U << 23;
  constexpr uint32_t kExponentOffset = 120U << 3;
  const uint32_t word = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = word & 0x7FFFFFFF;
  const uint32_t rounded = magnitude + 0x7FFFF + (magnitude >> 20 & 1);
  if (rounded < kMinNormal) return 0;
  return static_cast<uint8_t>((word >> 24 & 0x80) | std::min((rounded >> 20) - kExponentOffset, 0x7EU));
}

uint8_t int8_code(float value) {
  return static_cast<uint8_t>(static_cast<int8_t>(std::lrint(value)));
}

/// Rounds a positive number up to bf16, so that no code exceeds its maximum.
tensor::BFloat16 bf16_not_below(float value) {
  return {static_cast<uint16_t>((std::bit_cast<uint32_t>(value) + 0xFFFF) >> 16)};
}

float largest_magnitude(std::span<const float> values) {
  uint32_t largest = 0;
  for (const float x : values) largest = std::max(largest, std::bit_cast<uint32_t>(x) & 0x7FFFFFFF);
  return std::bit_cast<float>(largest);
}

}  // namespace

int32_t scale_channels_of(tensor::KvDType dtype, int32_t fp8_channels) {
  return dtype == tensor::KvDType::kInt8 ? tensor::kInt8ScaleChannels : fp8_channels;
}

void encode_values(tensor::KvDType dtype, int32_t scale_channels, std::span<const float> values, std::byte* codes,
                   std::byte* scales) {
  const bool is_int8 = dtype == tensor::KvDType::kInt8;
  const auto step = static_cast<size_t>(scale_channels);
  for (size_t first = 0; first < values.size(); first += step, scales += sizeof(tensor::BFloat16)) {
    const auto of_scale = values.subspan(first, std::min(values.size() - first, step));
    const float largest = largest_magnitude(of_scale);
    tensor::BFloat16 scale;
    auto* const out = reinterpret_cast<uint8_t*>(codes) + first;
    if (!(largest < kMinCodedFault)) {
      scale = tensor::BFloat16::from_float(std::nanf(""));
      std::memset(out, 0, of_scale.size());
    } else if (largest < kMinCodedMagnitude) {
      std::memset(out, 0, of_scale.size());
    } else {
      scale = bf16_not_below(largest / (is_int8 ? kMaxInt8 : kMaxE4M3));
      const float divisor = scale.to_float();
      for (size_t i = 0; i < of_scale.size(); ++i) {
        out[i] = is_int8 ? int8_code(of_scale[i] / divisor) : e4m3_code(of_scale[i] / divisor);
      }
    }
    std::memcpy(scales, &scale, sizeof(scale));
  }
}

KvCodeLayout::KvCodeLayout(tensor::KvDType dtype, int32_t padded_dim, int32_t depth)
    : dtype_(dtype), padded_dim_(padded_dim), depth_(depth), scale_channels_(scale_channels_of(dtype, padded_dim)) {
  CHECK(dtype != tensor::KvDType::kAuto && padded_dim % 16 == 0, "codes of {} channels", padded_dim);
}

size_t KvCodeLayout::token_bytes() const {
  return 2 * (static_cast<size_t>(padded_dim_) + static_cast<size_t>(scale_count()) * sizeof(tensor::BFloat16));
}

void KvCodeLayout::encode(std::span<const float> key, std::span<const float> value, std::byte* token) const {
  const auto dim = static_cast<size_t>(padded_dim_);
  std::byte* const scales = token + 2 * dim;
  encode_values(dtype_, scale_channels_, key, token, scales);
  encode_values(dtype_, scale_channels_, value, token + dim,
                scales + static_cast<size_t>(scale_count()) * sizeof(tensor::BFloat16));
}

void KvCodeLayout::place(const std::byte* token, int32_t lane, std::byte* group) const {
  const auto dim = static_cast<size_t>(padded_dim_);
  const std::byte* const value = token + dim;
  std::byte* const values = group + kGroupKeys * dim;
  for (int32_t i = 0; i < padded_dim_; ++i) {
    group[(i / depth_ * kGroupKeys + lane) * depth_ + i % depth_] = token[i];
    values[(lane / depth_ * padded_dim_ + i) * depth_ + lane % depth_] = value[i];
  }
  const std::byte* from = value + dim;
  std::byte* to = values + kGroupKeys * dim + static_cast<size_t>(lane) * sizeof(tensor::BFloat16);
  for (int32_t scale = 0; scale < 2 * scale_count(); ++scale) {
    std::memcpy(to, from, sizeof(tensor::BFloat16));
    from += sizeof(tensor::BFloat16);
    to += kGroupKeys * sizeof(tensor::BFloat16);
  }
}

KvGroupCodes KvCodeLayout::describe(const std::byte* group, int32_t count) const {
  return {.codes = group,
          .has_int8 = dtype_ == tensor::KvDType::kInt8,
          .padded_dim = padded_dim_,
          .scale_channels = scale_channels_,
          .count = count};
}

}  // namespace millrace::cpu
