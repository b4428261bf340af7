#include "cuda/upload_batch.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace millrace::cuda {
namespace {

/// The minimum splits per sequence for which a bound has room, and the maximum of any batch.
constexpr uint64_t kMinSplits = 2;
constexpr uint64_t kMaxSplits = uint64_t{1} << 30;

constexpr size_t aligned(size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

/// The offsets of the parts of an uploaded batch, after the number of sequences.
struct Offsets {
  explicit Offsets(size_t sequences)
      : row_begin(aligned(sizeof(int32_t))),
        prefix(row_begin + aligned((sequences + 1) * sizeof(int32_t))),
        drafts(prefix + aligned(sequences * sizeof(int32_t))),
        split_begin(drafts + aligned(sequences * sizeof(int32_t))),
        page_begin(split_begin + aligned((sequences + 1) * sizeof(int32_t))),
        page_ids(page_begin + aligned((sequences + 1) * sizeof(int32_t))) {}
  size_t row_begin, prefix, drafts, split_begin, page_begin, page_ids;
};

/// Writes DeviceBatch::split_begin. Sequences without rows count too: the tail rows of a decode step use the bound of
/// all rows, which identifies a graph.
void put_splits(const tensor::BatchLayout& batch, int32_t* to) {
  to[0] = 0;
  for (size_t s = 0; s < batch.sequence_count(); ++s) {
    const int32_t rows = batch.row_begin[s + 1] - batch.row_begin[s];
    to[s + 1] = to[s] + splits_of(rows, batch.prefix[s] + rows);
  }
}

}  // namespace

/// Rounds bounds to powers of two, so that one graph serves many steps.
// Powers of two, so that graphs serve many steps.
int32_t split_bound(int64_t splits, size_t sequences) {
  const uint64_t wanted = std::max(static_cast<uint64_t>(splits), kMinSplits * sequences);
  CHECK(wanted <= kMaxSplits, "{} splits of keys in a batch, wanted at most {}", wanted, kMaxSplits);
  return static_cast<int32_t>(std::bit_ceil(wanted));
}

size_t uploaded_batch_bytes(size_t sequences, size_t pages) {
  return Offsets(sequences).page_ids + pages * sizeof(uint32_t);
}

tensor::UploadedBatch upload_batch(Submissions& submissions, const tensor::BatchLayout& batch) {
  const size_t count = batch.sequence_count();
  // Batches that are padded alike use the same addresses, so that one graph reads them.
  const size_t bound = std::max(count, static_cast<size_t>(batch.padded_sequences));
  const auto pages = batch.pages.first(static_cast<size_t>(batch.page_begin.back()));
  const auto [row_begin, prefix, drafts, split_begin, page_begin, page_ids] = Offsets(bound);
  int32_t splits = 0;
  const std::byte* at = submissions.upload(uploaded_batch_bytes(bound, pages.size()), [&](std::byte* to) {
    const auto put = [to](size_t offset, auto values) {
      if (!values.empty()) std::memcpy(to + offset, values.data(), values.size_bytes());
    };
    const auto sequences = static_cast<int32_t>(count);
    put(0, std::span(&sequences, 1));
    put(row_begin, batch.row_begin);
    put(prefix, batch.prefix);
    std::memset(to + drafts, 0, count * sizeof(int32_t));
    put(drafts, batch.drafts);
    auto* const sums = reinterpret_cast<int32_t*>(to + split_begin);
    put_splits(batch, sums);
    splits = sums[count];
    put(page_begin, batch.page_begin);
    put(page_ids, pages);
  });
  const auto ints = [at](size_t offset) { return reinterpret_cast<const int32_t*>(at + offset); };
  CudaBatch handle{{.sequence_count = ints(0),
                    .row_begin = ints(row_begin),
                    .prefix = ints(prefix),
                    .split_begin = ints(split_begin),
                    .page_begin = ints(page_begin),
                    .pages = reinterpret_cast<const uint32_t*>(at + page_ids),
                    .drafts = ints(drafts)},
                   {.rows = batch.row_count(),
                    .sequences = static_cast<int32_t>(bound),
                    .sequence_rows = 0,
                    .splits = splits == 0 ? 0 : split_bound(splits, bound)}};
  handle.bounds.sequence_rows = batch.padded_sequence_rows;
  handle.bounds.context = batch.padded_context;
  for (size_t s = 0; s < count; ++s) {
    const int32_t rows = batch.row_begin[s + 1] - batch.row_begin[s];
    handle.bounds.sequence_rows = std::max(handle.bounds.sequence_rows, rows);
    handle.bounds.context = std::max(handle.bounds.context, batch.prefix[s] + rows);
  }
  return {batch, submissions.keep(handle)};
}

}  // namespace millrace::cuda
