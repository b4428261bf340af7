#pragma once

#include <cstdint>
#include <span>

#include "base/enum_names.h"

namespace millrace::tensor {

/// What a KV cache stores of keys and values: the compute dtype, or codes of 8 bits with scales.
enum class KvDType : uint8_t { kAuto, kFp8E4M3, kInt8 };

inline constexpr EnumName<KvDType> kKvDTypeNames[] = {
    {KvDType::kAuto, "auto"},
    {KvDType::kFp8E4M3, "fp8_e4m3"},
    {KvDType::kInt8, "int8"},
};
constexpr std::span<const EnumName<KvDType>> enum_names(KvDType) {
  return kKvDTypeNames;
}

}  // namespace millrace::tensor
