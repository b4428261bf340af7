#include "weights/gguf_blocks.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "tensor/dtype.h"
#include "weights/element_codes.h"
#include "weights/k_blocks.h"

namespace millrace::weights {
namespace {

constexpr GgmlType kTypes[] = {
    {0, "F32", 1, 4},       {1, "F16", 1, 2},       {30, "BF16", 1, 2},       {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},    {6, "Q5_0", 32, 22},    {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},
    {10, "Q2_K", 256, 84},  {11, "Q3_K", 256, 110}, {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210}, {20, "IQ4_NL", 32, 18}, {23, "IQ4_XS", 256, 136}, {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},
};

constexpr int kBlock = 32;        // weights of a small block
constexpr int kSuperBlock = 256;  // weights of a block of the K types

using Bytes = const uint8_t*;

float f16(Bytes at) {
  tensor::Float16 value;
  std::memcpy(&value, at, sizeof(value));
  return value.to_float();
}

/// Calls value(code, i) for the 32 codes of 16 bytes, low nibbles first.
template <class Value>
void halves(Bytes nibbles, int count, const Value& value) {
  for (int j = 0; j < count / 2; ++j) {
    value(nibbles[j] & 15, j);
    value(nibbles[j] >> 4, j + count / 2);
  }
}

void decode_q4_0(Bytes block, float* out) {
  const float d = f16(block);
  halves(block + 2, kBlock, [&](int code, int i) { out[i] = d * static_cast<float>(code - 8); });
}

void decode_q4_1(Bytes block, float* out) {
  const float d = f16(block);
  const float minimum = f16(block + 2);
  halves(block + 4, kBlock, [&](int code, int i) { out[i] = d * static_cast<float>(code) + minimum; });
}

/// Returns bit 4 of the code of weight i.
int fifth_bit(uint32_t high, int i) {
  return static_cast<int>(high >> i & 1u) << 4;
}

void decode_q5_0(Bytes block, float* out) {
  const float d = f16(block);
  uint32_t high = 0;
  std::memcpy(&high, block + 2, sizeof(high));
  halves(block + 6, kBlock,
         [&](int code, int i) { out[i] = d * static_cast<float>((code | fifth_bit(high, i)) - 16); });
}

void decode_q5_1(Bytes block, float* out) {
  const float d = f16(block);
  const float minimum = f16(block + 2);
  uint32_t high = 0;
  std::memcpy(&high, block + 4, sizeof(high));
  halves(block + 8, kBlock,
         [&](int code, int i) { out[i] = d * static_cast<float>(code | fifth_bit(high, i)) + minimum; });
}

void decode_q8_0(Bytes block, float* out) {
  const float d = f16(block);
  for (int i = 0; i < kBlock; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

void decode_q2_k(Bytes block, float* out) {
  const float d = f16(block + Q2KBlock::kScale);
  const float dmin = f16(block + Q2KBlock::kMinimum);
  for (int i = 0; i < kSuperBlock; ++i) {
    const float scale = d * static_cast<float>(block[i / 16] & 15);
    const float minimum = dmin * static_cast<float>(block[i / 16] >> 4);
    out[i] = scale * static_cast<float>(two_bits(block + Q2KBlock::kCodes, i)) - minimum;
  }
}

void decode_q3_k(Bytes block, float* out) {
  const float d = f16(block + Q3KBlock::kScale);
  for (int i = 0; i < kSuperBlock; ++i) {
    const float scale = d * static_cast<float>(q3_k_factor(block, i / 16));
    out[i] = scale * static_cast<float>(q3_k_integer(block, i));
  }
}

/// The scale and the minimum of one of the eight sub-blocks of Q4_K and Q5_K, 6 bits each.
struct SubScale {
  int scale = 0;
  int minimum = 0;
};

SubScale sub_scale(Bytes packed, int index) {
  if (index < 4) return {packed[index] & 63, packed[index + 4] & 63};
  return {(packed[index + 4] & 15) | (packed[index - 4] >> 6) << 4, (packed[index + 4] >> 4) | (packed[index] >> 6)
                                                                                                   << 4};
}

void decode_q4_k(Bytes block, float* out) {
  const float d = f16(block);
  const float dmin = f16(block + 2);
  for (int b = 0; b < kSuperBlock / kBlock; ++b) {
    const SubScale sub = sub_scale(block + 4, b);
    const float scale = d * static_cast<float>(sub.scale);
    const float minimum = dmin * static_cast<float>(sub.minimum);
    const Bytes nibbles = block + 16 + b / 2 * kBlock;
    for (int i = 0; i < kBlock; ++i)
      out[b * kBlock + i] = scale * static_cast<float>(nibbles[i] >> (b % 2 * 4) & 15) - minimum;
  }
}

void decode_q5_k(Bytes block, float* out) {
  const float d = f16(block);
  const float dmin = f16(block + 2);
  const Bytes high = block + 16;
  for (int b = 0; b < kSuperBlock / kBlock; ++b) {
    const SubScale sub = sub_scale(block + 4, b);
    const float scale = d * static_cast<float>(sub.scale);
    const float minimum = dmin * static_cast<float>(sub.minimum);
    const Bytes nibbles = block + 48 + b / 2 * kBlock;
    for (int i = 0; i < kBlock; ++i) {
      const int code = (nibbles[i] >> (b % 2 * 4) & 15) | (high[i] >> b & 1) << 4;
      out[b * kBlock + i] = scale * static_cast<float>(code) - minimum;
    }
  }
}

void decode_q6_k(Bytes block, float* out) {
  const float d = f16(block + 208);
  const Bytes scales = block + 192;
  for (int i = 0; i < kSuperBlock; ++i) {
    const int half = i / 128;
    const int within = i % 128;
    const int quarter = within / 32;
    const int low = block[half * 64 + within % 64] >> (within / 64 * 4) & 15;
    const int high = block[128 + half * 32 + within % 32] >> (2 * quarter) & 3;
    const float scale = d * static_cast<float>(static_cast<int8_t>(scales[i / 16]));
    out[i] = scale * static_cast<float>((low | high << 4) - 32);
  }
}

void decode_iq4_nl(Bytes block, float* out) {
  const float d = f16(block);
  halves(block + 2, kBlock, [&](int code, int i) { out[i] = d * static_cast<float>(kIq4[static_cast<size_t>(code)]); });
}

void decode_iq4_xs(Bytes block, float* out) {
  const float d = f16(block);
  const int high = block[2] | block[3] << 8;
  for (int b = 0; b < kSuperBlock / kBlock; ++b) {
    const int low = block[4 + b / 2] >> (b % 2 * 4) & 15;
    const float scale = d * static_cast<float>((low | (high >> (2 * b) & 3) << 4) - 32);
    halves(block + 8 + 16 * b, kBlock,
           [&](int code, int i) { out[b * kBlock + i] = scale * static_cast<float>(kIq4[static_cast<size_t>(code)]); });
  }
}

void decode_mxfp4(Bytes block, float* out) {
  // ggml reads the exponent 255 as a number, 2^128, which no f32 holds: half of it times twice the code.
  const float half = detail::power_of_two(static_cast<int>(block[0]) - 128);
  halves(block + 1, kBlock, [&](int code, int i) { out[i] = half * (2 * kE2M1[static_cast<size_t>(code)]); });
}

void decode_nvfp4(Bytes block, float* out) {
  constexpr int kGroup = 16;
  for (int g = 0; g < 4; ++g) {
    const uint8_t code = block[g] & 0x7F;
    const float scale = code == 0x7F ? 0.0f : kE4M3[code];
    halves(block + 4 + g * kGroup / 2, kGroup,
           [&](int each, int i) { out[g * kGroup + i] = scale * kE2M1[static_cast<size_t>(each)]; });
  }
}

using DecodeBlock = void (*)(Bytes, float*);

DecodeBlock decoder_of(uint32_t type_id) {
  switch (type_id) {
    case 0: return [](Bytes block, float* out) { std::memcpy(out, block, sizeof(float)); };
    case 1: return [](Bytes block, float* out) { *out = f16(block); };
    case 30:
      return [](Bytes block, float* out) {
        tensor::BFloat16 value;
        std::memcpy(&value, block, sizeof(value));
        *out = value.to_float();
      };
    case 2: return decode_q4_0;
    case 3: return decode_q4_1;
    case 6: return decode_q5_0;
    case 7: return decode_q5_1;
    case 8: return decode_q8_0;
    case 10: return decode_q2_k;
    case 11: return decode_q3_k;
    case 12: return decode_q4_k;
    case 13: return decode_q5_k;
    case 14: return decode_q6_k;
    case 20: return decode_iq4_nl;
    case 23: return decode_iq4_xs;
    case 39: return decode_mxfp4;
    case 40: return decode_nvfp4;
    default: return nullptr;
  }
}

}  // namespace

std::optional<GgmlType> find_ggml_type(uint32_t id) {
  const auto* const found = std::ranges::find(kTypes, id, &GgmlType::id);
  if (found == std::end(kTypes)) return std::nullopt;
  return *found;
}

void decode_blocks(uint32_t type_id, std::span<const std::byte> blocks, std::span<float> out) {
  const auto type = find_ggml_type(type_id);
  CHECK(type, "GGUF type {}", type_id);
  const DecodeBlock decode = decoder_of(type_id);
  const size_t count = blocks.size() / type->block_bytes;
  CHECK(count * static_cast<size_t>(type->block_weights) == out.size(), "{} blocks of {} for {} weights", count,
        type->name, out.size());
  const auto* const bytes = reinterpret_cast<Bytes>(blocks.data());
  for (size_t i = 0; i < count; ++i)
    decode(bytes + i * type->block_bytes, out.data() + i * static_cast<size_t>(type->block_weights));
}

}  // namespace millrace::weights
