#include "cuda/place_batch.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace millrace::cuda {
namespace {

/// Contexts are bounded by powers of two from here on, so that graphs serve many steps.
constexpr int32_t kLeastContext = 512;

constexpr size_t aligned(size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

/// Where the parts of a placed batch begin, behind the number of sequences.
struct Offsets {
  explicit Offsets(size_t sequences)
      : row_begin(aligned(sizeof(int32_t))),
        prefix(row_begin + aligned((sequences + 1) * sizeof(int32_t))),
        page_begin(prefix + aligned(sequences * sizeof(int32_t))),
        page_ids(page_begin + aligned((sequences + 1) * sizeof(int32_t))) {}
  size_t row_begin, prefix, page_begin, page_ids;
};

}  // namespace

int32_t context_bound(int32_t tokens) {
  return std::max(kLeastContext, static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(tokens))));
}

size_t placed_bytes(size_t sequences, size_t pages) {
  return Offsets(sequences).page_ids + pages * sizeof(uint32_t);
}

tensor::PlacedBatch place_batch(Submissions& submissions, const tensor::BatchLayout& batch) {
  const size_t count = batch.sequence_count();
  // What is padded alike lies at the same addresses, so that one graph reads it.
  const size_t bound = std::max(count, static_cast<size_t>(batch.padded_sequences));
  const auto pages = batch.pages.first(static_cast<size_t>(batch.page_begin.back()));
  const auto [row_begin, prefix, page_begin, page_ids] = Offsets(bound);
  const std::byte* at = submissions.upload(placed_bytes(bound, pages.size()), [&](std::byte* to) {
    const auto put = [to](size_t offset, auto values) {
      if (!values.empty()) std::memcpy(to + offset, values.data(), values.size_bytes());
    };
    const auto sequences = static_cast<int32_t>(count);
    put(0, std::span(&sequences, 1));
    put(row_begin, batch.row_begin);
    put(prefix, batch.prefix);
    put(page_begin, batch.page_begin);
    put(page_ids, pages);
  });
  const auto ints = [at](size_t offset) { return reinterpret_cast<const int32_t*>(at + offset); };
  CudaBatch placed{
      {ints(0), ints(row_begin), ints(prefix), ints(page_begin), reinterpret_cast<const uint32_t*>(at + page_ids)},
      {batch.row_count(), static_cast<int32_t>(bound), 0, kLeastContext}};
  for (size_t s = 0; s < count; ++s) {
    const int32_t rows = batch.row_begin[s + 1] - batch.row_begin[s];
    const int32_t context = batch.prefix[s] + rows;
    placed.bounds.sequence_rows = std::max(placed.bounds.sequence_rows, rows);
    placed.bounds.context = std::max(placed.bounds.context, context_bound(context));
  }
  return {batch, submissions.keep(placed)};
}

}  // namespace millrace::cuda
