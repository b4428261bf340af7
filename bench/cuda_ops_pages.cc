// Pages between a device and pinned memory of the host.

#include <cstring>

#include "cuda/kernels.h"
#include "cuda_ops_parts.h"

namespace millrace::bench {
namespace {

/// Pinned host memory, written once so that it is resident.
class PinnedBytes {
 public:
  explicit PinnedBytes(size_t bytes) {
    check(cudaHostAlloc(&data_, bytes, cudaHostAllocDefault), "cudaHostAlloc");
    std::memset(data_, 1, bytes);
  }
  PinnedBytes(const PinnedBytes&) = delete;
  ~PinnedBytes() { cudaFreeHost(data_); }
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

}  // namespace

void measure_pages(cudaStream_t stream, const OpsOptions& options) {
  constexpr int32_t kPages = 128;
  constexpr int32_t kPageSize = 64;
  const int32_t layers = options.layers;
  cuda::DeviceKvCache cache{
      .layer_count = layers, .kv_head_count = options.kv_heads, .head_dim = options.head_dim, .page_size = kPageSize};
  const size_t page_bytes = cuda::kv_page_bytes(cache);
  const size_t bytes = page_bytes * kPages;
  const DeviceBytes device(bytes);
  const PinnedBytes host(bytes);
  cache.data = device.as<std::byte>();
  cuda::PageCopyList pairs;
  for (int32_t i = 0; i < kPages; ++i) {  // in reverse: neighbours on one side are none on the other
    pairs.page[i] = static_cast<uint32_t>(kPages - 1 - i);
    pairs.host[i] = host.data() + static_cast<size_t>(i) * page_bytes;
  }
  pairs.count = kPages;
  const auto print = [&](const char* name, double time, double plain) {
    const auto total = static_cast<double>(bytes);
    fmt::print("{:<28} {:6.1f} GB/s, {:.3f} of one plain copy\n", name, total / time * 1e-9, plain / time);
  };
  fmt::print("\npages, {} of {:.1f} MiB in {} layers, and the host's pinned memory\n", kPages,
             static_cast<double>(page_bytes) / (1 << 20), layers);
  constexpr int kCalls = 3;
  const double out = seconds(
      stream,
      [&](int) {
        check(cudaMemcpyAsync(host.data(), device.as<>(), bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
      },
      kCalls);
  const double in = seconds(
      stream,
      [&](int) {
        check(cudaMemcpyAsync(device.as<>(), host.data(), bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
      },
      kCalls);
  fmt::print("one plain copy: {:.1f} GB/s to the host, {:.1f} back\n", static_cast<double>(bytes) / out * 1e-9,
             static_cast<double>(bytes) / in * 1e-9);
  print("to the host, all at once:",
        seconds(
            stream, [&](int) { cuda::copy_pages(stream, cuda::PageCopyDirection::kToHost, cache, 0, layers, pairs); },
            kCalls),
        out);
  const double by_layers = seconds(
      stream,
      [&](int) {
        for (int32_t layer = 0; layer < layers; ++layer) {
          cuda::copy_pages(stream, cuda::PageCopyDirection::kToDevice, cache, layer, 1, pairs);
        }
      },
      kCalls);
  print("to the device, by layers:", by_layers, in);
}

}  // namespace millrace::bench
