#include "cpu/device.h"

#include <atomic>
#include <cstring>

#include "base/check.h"
#include "cpu/ops.h"

namespace millrace::cpu {
namespace {

std::atomic<uint64_t> vector_count{0};

}  // namespace

CpuVector::CpuVector(std::span<const float> values)
    : values_(values.begin(), values.end()), serial_(vector_count.fetch_add(1) + 1) {}

Device::Device(const Kernels& table, tensor::DType compute, int threads, const std::vector<int>& pin)
    : kernels(table),
      compute_dtype(compute),
      pool(threads, pin),
      slot_scratch(static_cast<size_t>(threads)),
      slot_sums(static_cast<size_t>(threads)),
      samplers(static_cast<size_t>(threads)),
      token_choices(static_cast<size_t>(threads)) {}

void Device::store_row(const float* values, std::byte* out, tensor::DType dtype, int64_t count) const {
  if (dtype == tensor::DType::kF32) {
    std::memcpy(out, values, static_cast<size_t>(count) * sizeof(float));
  } else {
    kernels.narrow(values, reinterpret_cast<uint16_t*>(out), count);
  }
}

void check_matrix(const char* name, const tensor::Matrix& matrix, tensor::DType dtype, int64_t rows, int64_t cols) {
  CHECK(matrix.dtype == dtype && matrix.rows == rows && matrix.cols == cols, "{} is {} [{}, {}], wanted {} [{}, {}]",
        name, tensor::to_string(matrix.dtype), matrix.rows, matrix.cols, tensor::to_string(dtype), rows, cols);
}

void check_batch(const tensor::BatchLayout& batch, int64_t rows, const CpuKvCache& cache) {
  const size_t count = batch.sequence_count();
  CHECK(batch.row_begin.size() == count + 1 && batch.page_begin.size() == count + 1 && batch.row_begin.front() == 0,
        "a batch of {} sequences with {} row and {} page bounds", count, batch.row_begin.size(),
        batch.page_begin.size());
  CHECK(batch.row_count() == rows, "a batch of {} rows for a matrix of {}", batch.row_count(), rows);
  for (size_t s = 0; s < count; ++s) {
    const int64_t kept = batch.row_begin[s + 1] - batch.row_begin[s] - batch.draft_count(s);
    CHECK(batch.draft_count(s) >= 0 && (kept > 0 || batch.draft_count(s) == 0), "sequence {} has {} drafts", s,
          batch.draft_count(s));
    const int64_t tokens = batch.prefix[s] + kept + (cache.has_states() ? 0 : batch.draft_count(s));
    const int64_t pages = batch.page_begin[s + 1] - batch.page_begin[s];
    CHECK(batch.row_begin[s] <= batch.row_begin[s + 1] && batch.prefix[s] >= 0 &&
              tokens <= pages * cache.shape().page_size,
          "sequence {} has {} tokens in {} pages of {}", s, tokens, pages, cache.shape().page_size);
  }
  CHECK(static_cast<size_t>(batch.page_begin.back()) <= batch.pages.size(), "{} pages, wanted {}", batch.pages.size(),
        batch.page_begin.back());
  for (const PageId page : batch.pages) {
    const bool is_hole = cache.has_states() && page == tensor::kNoPage;
    CHECK(is_hole || page.value() < static_cast<uint32_t>(cache.shape().page_count), "page {} of {}", page.value(),
          cache.shape().page_count);
  }
}

}  // namespace millrace::cpu
