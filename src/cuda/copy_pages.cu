#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace millrace::cuda {
namespace {

constexpr int kThreads = 512;
/// Blocks of a copy: enough to saturate the link to the host, and few, since GEMMs run at the same time.
constexpr uint32_t kMaxBlocks = 32;
constexpr int kWordsAtOnce = 4;  ///< 16-byte words in flight per thread
constexpr int32_t kTaskWords = kThreads * kWordsAtOnce;

/// One launch, which copies the same part of many pages.
struct PageCopies {
  PageCopyDirection way = PageCopyDirection::kToHost;
  int32_t words = 0;  ///< of 16 bytes, in the part
  size_t offset = 0;  ///< of the part within a page
  std::byte* pages = nullptr;
  size_t page_bytes = 0;
  PageCopyList pairs;
};
static_assert(sizeof(PageCopies) <= 4096, "what every architecture takes as arguments");

__global__ void __launch_bounds__(kThreads) copy_pages_kernel(const __grid_constant__ PageCopies c) {
  const int32_t page_tasks = ceil_div(c.words, kTaskWords);
  const int32_t tasks = c.pairs.count * page_tasks;
  for (auto task = static_cast<int32_t>(blockIdx.x); task < tasks; task += static_cast<int32_t>(gridDim.x)) {
    const int32_t pair = task / page_tasks;
    const int32_t first = task % page_tasks * kTaskWords + static_cast<int32_t>(threadIdx.x);
    auto* const page = reinterpret_cast<uint4*>(c.pages + c.pairs.page[pair] * c.page_bytes + c.offset);
    auto* const host_page = reinterpret_cast<uint4*>(static_cast<std::byte*>(c.pairs.host[pair]) + c.offset);
    const uint4* const from = c.way == PageCopyDirection::kToHost ? page : host_page;
    uint4* const to = c.way == PageCopyDirection::kToHost ? host_page : page;
    uint4 words[kWordsAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kWordsAtOnce; ++i) {
      if (first + i * kThreads < c.words) words[i] = from[first + i * kThreads];
    }
#pragma unroll
    for (int i = 0; i < kWordsAtOnce; ++i) {
      if (first + i * kThreads < c.words) to[first + i * kThreads] = words[i];
    }
  }
}

}  // namespace

void copy_pages(cudaStream_t stream, PageCopyDirection way, const DeviceKvCache& cache, int32_t first_layer,
                int32_t layer_count, const PageCopyList& pairs) {
  const size_t words = static_cast<size_t>(layer_count) * kv_layer_bytes(cache) / sizeof(uint4);
  const size_t tasks = static_cast<size_t>(pairs.count) * ((words + kTaskWords - 1) / kTaskWords);
  if (tasks > INT32_MAX) {
    throw std::invalid_argument("copy_pages: found " + std::to_string(pairs.count) + " pages of " +
                                std::to_string(words) + " words of 16 bytes, wanted fewer or smaller ones");
  }
  launch<copy_pages_kernel>(
      {"copy_pages", dim3(tasks < kMaxBlocks ? static_cast<uint32_t>(tasks) : kMaxBlocks), dim3(kThreads)}, stream,
      PageCopies{.way = way,
                 .words = static_cast<int32_t>(words),
                 .offset = static_cast<size_t>(first_layer) * kv_layer_bytes(cache),
                 .pages = static_cast<std::byte*>(cache.data),
                 .page_bytes = kv_page_bytes(cache),
                 .pairs = pairs});
}

}  // namespace millrace::cuda
