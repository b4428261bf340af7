#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/kernels.h"
#include "tensor/kv_dtype.h"

namespace millrace::cpu {

/// The magnitude from which a key or a value counts as a fault in a cache of codes. Below it every code times its scale
/// is finite.
inline constexpr float kMinCodedFault = 0x1p126f;

/// Returns the channels of a scale: 32 of int8, `fp8_channels` of E4M3.
[[nodiscard]] int32_t scale_channels_of(tensor::KvDType dtype, int32_t fp8_channels);

/// Encodes values as codes of 8 bits with a bf16 scale per `scale_channels` of them. A part of a scale with a value
/// that is not finite, or not below kMinCodedFault, becomes NaN.
void encode_values(tensor::KvDType dtype, int32_t scale_channels, std::span<const float> values, std::byte* codes,
                   std::byte* scales);

/// The layout of a KV head's tokens in a cache of 8-bit codes. Every scale is a bf16 that follows from the token's own
/// values. Int8 has a scale per 32 channels, E4M3 one per head.
///
/// A token is [K codes][V codes][K scales][V scales]. A group of 16 tokens has the codes in the order of attention's
/// operands (kernels.h), then its scales, [scales][16] of keys and as many of values.
class KvCodeLayout {
 public:
  /// `depth` is the number of adjacent channels of a key in the operand.
  KvCodeLayout(tensor::KvDType dtype, int32_t padded_dim, int32_t depth);

  [[nodiscard]] size_t token_bytes() const;
  [[nodiscard]] size_t group_bytes() const { return kGroupKeys * token_bytes(); }
  /// Encodes a key and a value, [padded_dim] each, as a token. A key that is not finite, or not below kMinCodedFault,
  /// becomes NaN.
  void encode(std::span<const float> key, std::span<const float> value, std::byte* token) const;
  /// Copies a token into a group.
  void place(const std::byte* token, int32_t lane, std::byte* group) const;
  /// Describes a group whose first `count` tokens exist.
  [[nodiscard]] KvGroupCodes describe(const std::byte* group, int32_t count) const;

 private:
  [[nodiscard]] int32_t scale_count() const { return (padded_dim_ + scale_channels_ - 1) / scale_channels_; }

  tensor::KvDType dtype_;
  int32_t padded_dim_;
  int32_t depth_;
  int32_t scale_channels_;
};

}  // namespace millrace::cpu
