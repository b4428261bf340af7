// Caches of more bytes than 32 bits count, and positions of which a context has a million.

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <numeric>

#include "cuda/device_array.h"

using namespace millrace;
using namespace millrace::test;

namespace {

constexpr int32_t kHeads = 4;
constexpr int32_t kKvHeads = 2;
constexpr int32_t kHeadDim = 64;
constexpr int32_t kPageSize = 16;
constexpr int32_t kLayers = 2;
constexpr int32_t kLayer = 1;
constexpr int64_t kQkvWidth = int64_t{kHeads + 2 * kKvHeads} * kHeadDim;

/// A cache with pages at arbitrary numbers, in which only written pages take memory. Keys are not rotated, so that
/// results do not depend on positions.
class LargeCache {
 public:
  explicit LargeCache(uint32_t page_count)
      : bytes_(cuda::kv_page_bytes(shape_) * page_count),
        memory_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    shape_.data = memory_;
  }
  LargeCache(const LargeCache&) = delete;
  ~LargeCache() { munmap(memory_, bytes_); }

  /// Returns the attention of `rows` rows after `prefix` others, of which only those within the window exist.
  [[nodiscard]] std::vector<uint16_t> step(const Values& qkv, int32_t prefix, const std::vector<uint32_t>& table,
                                           int32_t window) const {
    const auto rows = static_cast<int32_t>(static_cast<int64_t>(qkv.size()) / kQkvWidth);
    const DeviceArray<int32_t> one(std::vector<int32_t>{1});
    const DeviceArray<int32_t> row_begin(std::vector<int32_t>{0, rows});
    const DeviceArray<int32_t> before(std::vector<int32_t>{prefix});
    const DeviceArray<int32_t> page_begin(std::vector<int32_t>{0, static_cast<int32_t>(table.size())});
    const int32_t splits = cuda::splits_of(rows, prefix + rows);
    const DeviceArray<int32_t> split_begin(std::vector<int32_t>{0, splits});
    const DeviceArray<uint32_t> pages(table);
    const DeviceArray<float> values(qkv);
    const DeviceArray<float> frequency(static_cast<size_t>(kHeadDim / 2));
    const DeviceArray<uint16_t> q(static_cast<size_t>(rows) * kHeads * kHeadDim, 0xFF);
    const DeviceArray<uint16_t> out(q.size(), 0xFF);
    const cuda::DeviceBatch batch{.sequence_count = one.get(),
                                  .row_begin = row_begin.get(),
                                  .prefix = before.get(),
                                  .split_begin = split_begin.get(),
                                  .page_begin = page_begin.get(),
                                  .pages = pages.get()};
    const cuda::BatchBounds bounds{.rows = rows, .sequences = 1, .sequence_rows = rows, .splits = splits};
    const cuda::AttentionSizes sizes{kHeads, 0.125f, window};
    cuda::rotary_store_kv(nullptr, values.get(), kHeads, {frequency.get(), kHeadDim}, {}, batch, bounds, shape_, kLayer,
                          q.get());
    const DeviceArray<uint8_t> workspace(cuda::attention_workspace_bytes(sizes, shape_, bounds), 0xFF);
    cuda::attention(nullptr, q.get(), sizes, batch, bounds, shape_, kLayer, out.get(), workspace.get());
    return out.values();
  }
  /// Reads the pages through copy_pages, one by one.
  [[nodiscard]] std::vector<uint8_t> read(const std::vector<uint32_t>& table) const {
    const DeviceArray<uint8_t> host(table.size() * cuda::kv_page_bytes(shape_), 0xFF);
    cuda::PageCopyList pairs;
    for (const uint32_t page : table) {
      pairs.page[pairs.count] = page;
      pairs.host[pairs.count] = host.get() + static_cast<size_t>(pairs.count) * cuda::kv_page_bytes(shape_);
      ++pairs.count;
    }
    cuda::copy_pages(nullptr, cuda::PageCopyDirection::kToHost, shape_, 0, kLayers, pairs);
    return host.values();
  }

 private:
  cuda::DeviceKvCache shape_{
      .layer_count = kLayers, .kv_head_count = kKvHeads, .head_dim = kHeadDim, .page_size = kPageSize};
  size_t bytes_;
  void* memory_;
};

Values take_range(const Values& all, int64_t first, int64_t count) {
  return {all.begin() + first * kQkvWidth, all.begin() + (first + count) * kQkvWidth};
}

}  // namespace

TEST_CASE("pages beyond 4 GiB and 2^31 elements are addressed right") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 140);
  constexpr int32_t kRows = 300;
  const Values qkv = random.normal(kRows * kQkvWidth);
  std::vector<uint32_t> near((kRows + kPageSize - 1) / kPageSize);
  std::iota(near.begin(), near.end(), 0);
  // A page takes 16 KiB: numbers that are equal where 31 or 32 bits of their bytes, or of their elements, are looked
  // at.
  constexpr uint32_t kSteps[] = {0, 1 << 17, 1 << 18, 1 << 19};
  std::vector<uint32_t> far;
  for (const uint32_t page : near) far.push_back(page / 4 + kSteps[page % 4]);
  const LargeCache small(static_cast<uint32_t>(near.size()));
  const LargeCache large((1 << 19) + static_cast<uint32_t>(near.size()));
  for (const auto& [first, count] : {std::pair{0, kRows - 1}, std::pair{kRows - 1, 1}}) {
    const Values rows = take_range(qkv, first, count);
    REQUIRE(large.step(rows, first, far, 0) == small.step(rows, first, near, 0));
  }
  REQUIRE(large.read(far) == small.read(near));
}

TEST_CASE("a row after a million others has the bits of one after 1000") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 141);
  constexpr int32_t kWindow = 300;
  constexpr int32_t kRows = 320;
  const Values qkv = random.normal((kRows + 1) * kQkvWidth);
  std::vector<std::vector<uint16_t>> outputs;
  for (const int32_t prefix : {1 << 10, 1 << 20}) {
    const LargeCache cache((kRows + kPageSize) / kPageSize + 1);
    // Nobody sees what lies before, so that all of it may be one page.
    std::vector<uint32_t> table(static_cast<size_t>(prefix / kPageSize), 0);
    for (uint32_t page = 1; page <= kRows / kPageSize + 1; ++page) table.push_back(page);
    // The first rows of the chunk see some of it.
    std::vector<uint16_t> out = cache.step(take_range(qkv, 0, kRows), prefix, table, kWindow);
    out.erase(out.begin(), out.begin() + int64_t{kWindow} * kHeads * kHeadDim);
    const auto last = cache.step(take_range(qkv, kRows, 1), prefix + kRows, table, kWindow);
    out.insert(out.end(), last.begin(), last.end());
    outputs.push_back(std::move(out));
  }
  REQUIRE(outputs[1] == outputs[0]);
}
