#include "conformance/random_codes.h"

#include <bit>

namespace millrace::test {

using tensor::CodeHalfScales;
using tensor::CodeMatrix;
using tensor::CodeOffsets;
using tensor::CodeStorage;
using tensor::CodeValues;
using tensor::DType;

namespace {

/// Appends a number as `dtype`; an f16 is 1 to 2 times a power of two.
void append(std::vector<std::byte>& bytes, DType dtype, float value) {
  if (dtype == DType::kF32) {
    bytes.insert(bytes.end(), reinterpret_cast<std::byte*>(&value), reinterpret_cast<std::byte*>(&value) + 4);
    return;
  }
  uint16_t bits = tensor::BFloat16::from_float(value).bits;
  if (dtype == DType::kF16) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    bits = static_cast<uint16_t>((word >> 31 << 15) | (((word >> 23 & 255) - 112) << 10) | (word >> 13 & 1023));
  }
  bytes.insert(bytes.end(), reinterpret_cast<std::byte*>(&bits), reinterpret_cast<std::byte*>(&bits) + 2);
}

}  // namespace

std::vector<CodeLayout> code_layouts_of(const tensor::Backend& backend) {
  if (!backend.packs_codes()) return {};
  std::vector<CodeLayout> kinds(std::begin(kCodeLayouts), std::end(kCodeLayouts));
  for (const CodeLayout& kind : kByteKinds) {
    if (!kind.has_half_minimums || backend.packs_half_minimums()) kinds.push_back(kind);
  }
  return kinds;
}

CodeStorage random_codes(Random& random, int64_t rows, int64_t cols, const CodeLayout& kind) {
  CodeStorage storage{.name = "weight",
                      .rows = rows,
                      .cols = cols,
                      .bits = kind.bits,
                      .integer_bits = kind.integer_bits,
                      .values = kind.values,
                      .offsets = kind.offsets,
                      .group = kind.group,
                      .scale_dtype = kind.scale_dtype,
                      .codes = {},
                      .scales = {},
                      .zero_points = {},
                      .minimums = {},
                      .unit_scales = {},
                      .unit_minimums = {},
                      .half_kind = kind.half_scales,
                      .half_scales = {},
                      .half_minimums = {}};
  const CodeMatrix shape = storage.view();
  const auto number = [&random](int64_t low, int64_t high) { return static_cast<int>(random.integer(low, high)); };
  const int count = kind.bits == 8 ? 1 << kind.integer_bits : 256;
  const int base = kind.bits == 4 || kind.offsets == CodeOffsets::kZeroPoints ? 0
                   : kind.offsets == CodeOffsets::kMinimums && count < 256    ? 128
                                                                              : 128 - count / 2;
  for (int64_t i = 0; i < rows * shape.row_bytes(); ++i)
    storage.codes.push_back(static_cast<uint8_t>(base + number(0, count - 1)));
  // Weights are about 1 in size.
  const float size = (kind.values == CodeValues::kIq4 ? 0x1p-6f : 0x1p-3f) * (kind.has_factors ? 0x1p-4f : 1.0f) *
                     (kind.half_scales == CodeHalfScales::kE4M3 ? 0x1p-3f : 1.0f) *
                     (kind.half_scales == CodeHalfScales::kInt8 ? 0x1p-5f : 1.0f) *
                     (kind.bits == 8 ? 16.0f / static_cast<float>(count) : 1.0f);
  const auto draw = [&] {
    return (number(0, 1) == 0 ? -size : size) * (1.0f + static_cast<float>(number(0, 1023)) / 1024.0f);
  };
  for (int64_t i = 0; i < rows * shape.groups(); ++i) {
    append(storage.scales, kind.scale_dtype, draw());
    if (kind.offsets == CodeOffsets::kZeroPoints)
      storage.zero_points.push_back(
          static_cast<uint8_t>(kind.bits == 8 ? number(count * 2 / 5, count * 5 / 8) : number(0, 16)));
    if (kind.offsets == CodeOffsets::kMinimums) append(storage.minimums, kind.scale_dtype, 4.0f * draw());
  }
  for (int64_t i = 0; kind.has_factors && i < rows * shape.units(); ++i) {
    storage.unit_scales.push_back(static_cast<int8_t>(number(-32, 63)));
    if (kind.offsets == CodeOffsets::kMinimums) storage.unit_minimums.push_back(static_cast<int8_t>(number(0, 63)));
  }
  // Factors are 1 to 16, and some are zero.
  for (int64_t i = 0; kind.half_scales == CodeHalfScales::kE4M3 && i < rows * shape.halves(); ++i)
    storage.half_scales.push_back(static_cast<uint8_t>(number(0, 9) == 0 ? 0 : number(0x38, 0x58)));
  for (int64_t i = 0; kind.half_scales == CodeHalfScales::kInt8 && i < rows * shape.halves(); ++i)
    storage.half_scales.push_back(static_cast<uint8_t>(number(-64, 63)));
  for (int64_t i = 0; kind.has_half_minimums && i < rows * shape.halves(); ++i)
    storage.half_minimums.push_back(static_cast<int8_t>(number(-32, 31)));
  return storage;
}

}  // namespace millrace::test
