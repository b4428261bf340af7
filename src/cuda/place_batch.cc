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

}  // namespace

tensor::PlacedBatch place_batch(Submissions& submissions, const tensor::BatchLayout& batch) {
  const size_t count = batch.sequence_count();
  const auto pages = batch.pages.first(static_cast<size_t>(batch.page_begin.back()));
  const size_t row_begin = aligned(sizeof(int32_t));
  const size_t prefix = row_begin + aligned(batch.row_begin.size_bytes());
  const size_t page_begin = prefix + aligned(batch.prefix.size_bytes());
  const size_t page_ids = page_begin + aligned(batch.page_begin.size_bytes());
  const std::byte* at = submissions.upload(page_ids + pages.size_bytes(), [&](std::byte* to) {
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
      {batch.row_count(), static_cast<int32_t>(count), 0, kLeastContext}};
  for (size_t s = 0; s < count; ++s) {
    const int32_t rows = batch.row_begin[s + 1] - batch.row_begin[s];
    const auto context = static_cast<uint32_t>(batch.prefix[s] + rows);
    placed.bounds.sequence_rows = std::max(placed.bounds.sequence_rows, rows);
    placed.bounds.context = std::max(placed.bounds.context, static_cast<int32_t>(std::bit_ceil(context)));
  }
  return {batch, submissions.keep(placed)};
}

}  // namespace millrace::cuda
