#include "model/code_parts.h"

#include <algorithm>

#include "weights/weight_codes.h"

namespace millrace::model {
namespace {

using tensor::CodeHalfScales;
using tensor::CodeMatrix;
using tensor::CodeStorage;
using weights::StoredFormat;

bool can_keep(const StoredFormat& format, KeptCodes kept) {
  const bool fits = kept.half_minimums || !format.layout.has_half_minimums;
  return format.kind == StoredFormat::Kind::kCodes && format.layout.bits <= kept.max_bits && fits;
}

bool has_e4m3_halves(const StoredFormat& format) {
  return format.layout.half_scales == CodeHalfScales::kE4M3;
}

/// Quantizes the rows of a part to 4 bits. Those of a stored weight are decoded some at a time.
CodeStorage quantized(const CodeSource& source, int32_t threads) {
  if (source.stored == nullptr) return tensor::quantize_w4(source.plain, tensor::kCodeUnit, threads);
  const weights::StoredWeight& stored = *source.stored;
  const auto read = [&](int64_t first, int64_t count, float* out) {
    weights::decode_rows(stored, source.rows.begin + first, count, out);
  };
  return tensor::quantize_w4(stored.name, source.rows.size(), stored.cols, read, tensor::kCodeUnit, threads);
}

}  // namespace

PackedBits packed_bits(std::span<const StoredFormat> formats, const PackingRules& rules, bool fp8_fits,
                       bool codes_fit) {
  using Kind = StoredFormat::Kind;
  const auto is_fp8 = [](const StoredFormat& format) { return format.kind == Kind::kFp8; };
  const auto is_w8 = [](const StoredFormat& format) { return format.kind == Kind::kW8; };
  if (rules.quantization == Quantization::kW4) return PackedBits::k4;
  if (rules.quantization != Quantization::kNone)
    return rules.quantizes_all || std::ranges::any_of(formats, is_w8) ? PackedBits::k8 : PackedBits::kCompute;
  if (rules.keeps_fp8 && fp8_fits && std::ranges::all_of(formats, is_fp8)) return PackedBits::kFp8;
  return rules.keeps_codes && codes_fit ? PackedBits::k4 : PackedBits::kCompute;
}

KeptCodes kept_codes(const PackingRules& rules, PackedTogether together) {
  return {.mixed = together == PackedTogether::kStacked || rules.mixes_codes,
          .max_bits = rules.quantization == Quantization::kW4 ? 4 : 8,
          .half_minimums = rules.keeps_half_minimums};
}

bool can_keep_codes(std::span<const StoredFormat> formats, KeptCodes kept) {
  const StoredFormat& first = formats.front();
  return std::ranges::all_of(formats, [&](const StoredFormat& format) {
    // E4M3 factors of 16 columns share no panels with other codes.
    const bool fits = kept.mixed ? has_e4m3_halves(format) == has_e4m3_halves(first) : format.layout == first.layout;
    return can_keep(format, kept) && fits;
  });
}

bool can_divide_codes(const tensor::SumShards& shards) {
  return std::ranges::all_of(std::span(shards.border).first(tensor::kSumShards),
                             [](int64_t border) { return border % tensor::kCodeUnit == 0; });
}

std::vector<CodeMatrix> code_matrices(std::span<const CodeSource> sources, KeptCodes kept, int32_t threads,
                                      std::deque<CodeStorage>& memory) {
  std::vector<StoredFormat> formats;
  for (const CodeSource& source : sources) formats.push_back(source.format);
  const bool keeps_all = can_keep_codes(formats, kept);
  std::vector<CodeMatrix> matrices;
  for (size_t i = 0; i < sources.size(); ++i) {
    const CodeSource& source = sources[i];
    const bool is_kept = keeps_all || (kept.mixed && can_keep(formats[i], kept) && !has_e4m3_halves(formats[i]));
    const CodeStorage& storage =
        memory.emplace_back(is_kept ? weights::to_codes(*source.stored, source.rows, threads, source.scale_dtype)
                                    : quantized(source, threads));
    const CodeMatrix whole = storage.view();
    matrices.push_back(source.columns ? tensor::column_slice(whole, *source.columns) : whole);
  }
  return matrices;
}

}  // namespace millrace::model
