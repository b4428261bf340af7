#pragma once

#include <cstdint>
#include <span>

#include "base/enum_names.h"

namespace millrace::tensor {

/// What a KV cache stores of keys, values and latents: the compute dtype, or codes of 8 bits with scales in bf16.
enum class KvDType : uint8_t { kAuto, kFp8E4M3, kInt8 };

inline constexpr EnumName<KvDType> kKvDTypeNames[] = {
    {KvDType::kAuto, "auto"},
    {KvDType::kFp8E4M3, "fp8_e4m3"},
    {KvDType::kInt8, "int8"},
};
constexpr std::span<const EnumName<KvDType>> enum_names(KvDType) {
  return kKvDTypeNames;
}

/// Channels that share a scale of kInt8.
inline constexpr int32_t kInt8ScaleChannels = 32;
/// Channels of a latent that share a scale of kFp8E4M3. A key or a value has one scale.
inline constexpr int32_t kLatentScaleChannels = 128;

}  // namespace millrace::tensor
