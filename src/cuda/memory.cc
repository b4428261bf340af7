#include "cuda/memory.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "cuda/error.h"

namespace millrace::cuda {
namespace {

constexpr size_t kMinGrowthBytes = 64 << 10;

double megabytes(size_t bytes) {
  return static_cast<double>(bytes) / 1e6;
}

}  // namespace

tensor::Buffer allocate_device(int device, size_t bytes, const Stream& stream) {
  if (bytes == 0) return {};
  void* data = nullptr;
  check(cudaSetDevice(device), "cudaSetDevice");
  if (const cudaError_t outcome = cudaMalloc(&data, bytes); outcome != cudaSuccess) {
    size_t left = 0;
    size_t total = 0;
    (void)cudaMemGetInfo(&left, &total);
    const std::string missing =
        bytes > left ? fmt::format(", {:.1f} MB are missing", megabytes(bytes - left)) : std::string();
    fail(fmt::format("CUDA: cudaMalloc of {:.1f} MB, device {} has {:.1f} MB left{}: {}", megabytes(bytes), device,
                     megabytes(left), missing, describe_error(outcome)));
  }
  tensor::Buffer buffer(data, bytes, [](void* memory) { (void)cudaFree(memory); });
  check(cudaMemsetAsync(data, 0, bytes, stream.get()), "cudaMemset");
  stream.synchronize();
  return buffer;
}

tensor::Buffer allocate_pinned(size_t bytes) {
  if (bytes == 0) return {};
  void* data = nullptr;
  const cudaError_t outcome = cudaHostAlloc(&data, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
  if (outcome != cudaSuccess) {
    fail(fmt::format("CUDA: cudaHostAlloc of {:.1f} MB of the host's memory: {}", megabytes(bytes),
                     describe_error(outcome)));
  }
  std::memset(data, 0, bytes);
  return {data, bytes, [](void* memory) { (void)cudaFreeHost(memory); }};
}

std::byte* GrowingBuffer::reserve(int device, size_t bytes, const Stream& stream, bool& grown) {
  if (bytes > buffer_.bytes()) {
    tensor::Buffer larger = allocate_device(device, std::max({bytes, 2 * buffer_.bytes(), kMinGrowthBytes}), stream);
    outgrown_.push_back(std::exchange(buffer_, std::move(larger)));
    grown = true;
  }
  return buffer_.data();
}

}  // namespace millrace::cuda
