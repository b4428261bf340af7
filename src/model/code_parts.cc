#include "model/code_parts.h"

#include <algorithm>

#include "weights/weight_codes.h"

namespace millrace::model {
namespace {

using tensor::CodeMatrix;
using tensor::CodeStorage;

using tensor::CodeHalfScales;

/// Returns the kind of codes that a weight can keep.
std::optional<weights::CodeLayout> kind_of(const CodeSource& source, KeptCodes kept) {
  const auto kind = source.stored != nullptr ? weights::code_layout(*source.stored) : std::nullopt;
  if (!kind || kind->bits > kept.max_bits) return std::nullopt;
  if (!kept.all && (kind->bits > 4 || kind->half_scales != CodeHalfScales::kNone)) return std::nullopt;
  return kind;
}

bool has_e4m3_halves(const std::optional<weights::CodeLayout>& kind) {
  return kind && kind->half_scales == CodeHalfScales::kE4M3;
}

/// Returns whether weights that are packed together can all keep their codes. E4M3 factors of 16 columns share no
/// panels with other codes.
bool keep_codes(std::span<const CodeSource> sources, KeptCodes kept) {
  const auto first = kind_of(sources.front(), kept);
  return first && std::ranges::all_of(sources, [&](const CodeSource& source) {
           const auto kind = kind_of(source, kept);
           return kind == first || (kept.mixed && kind && has_e4m3_halves(kind) == has_e4m3_halves(first));
         });
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

bool can_keep_codes(std::span<const CodeSource> sources, KeptCodes kept, const tensor::SumShards* shards) {
  const auto begins_unit = [](int64_t border) { return border % tensor::kCodeUnit == 0; };
  if (shards != nullptr && !std::ranges::all_of(std::span(shards->border).first(tensor::kSumShards), begins_unit))
    return false;
  return keep_codes(sources, kept);
}

bool are_stored_alike(const CodeSource& left, const CodeSource& right) {
  if (left.stored == nullptr || right.stored == nullptr) return left.stored == right.stored;
  const weights::StoredWeight& one = *left.stored;
  const weights::StoredWeight& other = *right.stored;
  if (one.has_blocks() || other.has_blocks())
    return one.has_blocks() && other.has_blocks() && one.blocks.ggml_type == other.blocks.ggml_type;
  return one.codes.kind == other.codes.kind && one.codes.bits == other.codes.bits &&
         one.scales.kind == other.scales.kind && one.group_cols == other.group_cols &&
         one.zeros.order == other.zeros.order && one.zeros.constant == other.zeros.constant;
}

std::vector<CodeMatrix> code_matrices(std::span<const CodeSource> sources, KeptCodes kept, int32_t threads,
                                      std::deque<CodeStorage>& memory) {
  const bool keeps_all = keep_codes(sources, kept);
  std::vector<CodeMatrix> matrices;
  for (const CodeSource& source : sources) {
    const auto kind = kind_of(source, kept);
    const bool is_kept = keeps_all || (kept.mixed && kind && !has_e4m3_halves(kind));
    const CodeStorage& storage = memory.emplace_back(
        is_kept ? weights::to_codes(*source.stored, source.rows, threads, kept.alike) : quantized(source, threads));
    const CodeMatrix whole = storage.view();
    matrices.push_back(source.columns ? tensor::column_slice(whole, *source.columns) : whole);
  }
  return matrices;
}

}  // namespace millrace::model
