#include "model/w4_parts.h"

#include <algorithm>

#include "weights/w4_weight.h"

namespace millrace::model {
namespace {

using tensor::W4Matrix;
using tensor::W4Storage;

using tensor::W4HalfScales;

/// Returns the kind of codes that a weight can keep.
std::optional<weights::W4Kind> kind_of(const W4Source& source, KeptCodes kept) {
  const auto kind = source.stored != nullptr ? weights::w4_kind(*source.stored) : std::nullopt;
  if (!kind || kind->bits > kept.max_bits) return std::nullopt;
  if (!kept.all && (kind->bits > 4 || kind->half_scales != W4HalfScales::kNone)) return std::nullopt;
  return kind;
}

bool has_e4m3_halves(const std::optional<weights::W4Kind>& kind) {
  return kind && kind->half_scales == W4HalfScales::kE4M3;
}

/// Returns whether weights that are packed together can all keep their codes. E4M3 factors of 16 columns share no
/// panels with other codes.
bool keep_codes(std::span<const W4Source> sources, KeptCodes kept) {
  const auto first = kind_of(sources.front(), kept);
  return first && std::ranges::all_of(sources, [&](const W4Source& source) {
           const auto kind = kind_of(source, kept);
           return kind == first || (kept.all && kind && has_e4m3_halves(kind) == has_e4m3_halves(first));
         });
}

/// Quantizes the rows of a part to 4 bits. Those of a stored weight are decoded some at a time.
W4Storage quantized(const W4Source& source, int32_t threads) {
  if (source.stored == nullptr) return tensor::quantize_w4(source.plain, tensor::kW4Unit, threads);
  const weights::StoredWeight& stored = *source.stored;
  const auto read = [&](int64_t first, int64_t count, float* out) {
    weights::decode_rows(stored, source.rows.begin + first, count, out);
  };
  return tensor::quantize_w4(stored.name, source.rows.size(), stored.cols, read, tensor::kW4Unit, threads);
}

}  // namespace

bool can_keep_w4(std::span<const W4Source> sources, KeptCodes kept, const tensor::SumShards* shards) {
  const auto begins_unit = [](int64_t border) { return border % tensor::kW4Unit == 0; };
  if (shards != nullptr && !std::ranges::all_of(std::span(shards->border).first(tensor::kSumShards), begins_unit))
    return false;
  return keep_codes(sources, kept);
}

std::vector<W4Matrix> w4_matrices(std::span<const W4Source> sources, KeptCodes kept, int32_t threads,
                                  std::deque<W4Storage>& memory) {
  const bool keeps_all = keep_codes(sources, kept);
  std::vector<W4Matrix> matrices;
  for (const W4Source& source : sources) {
    const auto kind = kind_of(source, kept);
    const bool is_kept = keeps_all || (kept.all && kind && !has_e4m3_halves(kind));
    const W4Storage& storage = memory.emplace_back(is_kept ? weights::to_w4(*source.stored, source.rows, threads)
                                                           : quantized(source, threads));
    const W4Matrix whole = storage.view();
    matrices.push_back(source.columns ? tensor::column_slice(whole, *source.columns) : whole);
  }
  return matrices;
}

}  // namespace millrace::model
