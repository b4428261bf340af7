#include "model/w4_parts.h"

#include <algorithm>

#include "weights/w4_weight.h"

namespace millrace::model {
namespace {

using tensor::W4Matrix;
using tensor::W4Storage;

/// Returns whether weights are stored in 4 bits that can be packed together.
bool have_one_kind(std::span<const W4Source> sources) {
  const auto kind_of = [](const W4Source& source) {
    auto kind = source.stored != nullptr ? weights::w4_kind(*source.stored) : std::nullopt;
    if (kind && kind->has_half_scales && !source.keeps_halves) kind.reset();
    return kind;
  };
  const auto first = kind_of(sources.front());
  return first && std::ranges::all_of(sources, [&](const W4Source& source) { return kind_of(source) == first; });
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

bool can_keep_w4(std::span<const W4Source> sources, const tensor::SumShards* shards) {
  const auto begins_unit = [](int64_t border) { return border % tensor::kW4Unit == 0; };
  if (shards != nullptr && !std::ranges::all_of(std::span(shards->border).first(tensor::kSumShards), begins_unit))
    return false;
  return have_one_kind(sources);
}

std::vector<W4Matrix> w4_matrices(std::span<const W4Source> sources, int32_t threads, std::deque<W4Storage>& memory) {
  const bool are_stored = have_one_kind(sources);
  std::vector<W4Matrix> matrices;
  for (const W4Source& source : sources) {
    const W4Storage& storage = memory.emplace_back(are_stored ? weights::to_w4(*source.stored, source.rows, threads)
                                                              : quantized(source, threads));
    const W4Matrix whole = storage.view();
    matrices.push_back(source.columns ? tensor::column_slice(whole, *source.columns) : whole);
  }
  return matrices;
}

}  // namespace millrace::model
