#pragma once

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

/// The shared parts of the GPU benchmarks: device memory, event timing, and the memory ceiling.
namespace millrace::bench {

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(fmt::format("{}: {}", what, cudaGetErrorString(status)));
}
/// The stream for preparations before a measurement.
inline cudaStream_t preparing() {
  static const cudaStream_t kept = [] {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), "cudaStreamCreateWithPriority");
    return stream;
  }();
  return kept;
}
/// Zeroed device memory.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes) : bytes_(bytes) {
    check(cudaMalloc(&data_, std::max<size_t>(bytes, 16)), "cudaMalloc");
    check(cudaMemsetAsync(data_, 0, std::max<size_t>(bytes, 16), preparing()), "cudaMemsetAsync");
    check(cudaStreamSynchronize(preparing()), "cudaStreamSynchronize");
  }
  template <class T>
  explicit DeviceBytes(const std::vector<T>& values) : DeviceBytes(values.size() * sizeof(T)) {
    fill(0, values.data(), bytes_);
  }
  DeviceBytes(DeviceBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBytes& operator=(DeviceBytes&&) = delete;
  ~DeviceBytes() { cudaFree(data_); }
  template <class T = void>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_);
  }
  [[nodiscard]] size_t bytes() const { return bytes_; }
  void fill(size_t at, const void* values, size_t bytes) {
    check(cudaMemcpyAsync(as<char>() + at, values, bytes, cudaMemcpyDefault, preparing()), "cudaMemcpyAsync");
    check(cudaStreamSynchronize(preparing()), "cudaStreamSynchronize");
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Small random bf16 numbers. With zeros a device would save power and run faster.
inline DeviceBytes random_bf16(size_t count) {
  std::vector<uint16_t> block(std::min<size_t>(count, size_t{1} << 22));
  std::minstd_rand engine(1);
  for (uint16_t& bits : block) {
    const auto word = static_cast<uint32_t>(engine());
    bits = static_cast<uint16_t>((word & 0x807Fu) | ((0x78u + (word >> 8) % 8) << 7));
  }
  DeviceBytes bytes(count * sizeof(uint16_t));
  for (size_t at = 0; at < count; at += block.size()) {
    bytes.fill(at * sizeof(uint16_t), block.data(), std::min(block.size(), count - at) * sizeof(uint16_t));
  }
  return bytes;
}

/// Returns seconds per call: the median of `runs`, each of `calls` calls between two events. Each call receives the
/// number of earlier calls.
inline double seconds(cudaStream_t stream, const std::function<void(int)>& call, int calls = 20, int runs = 7) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreateWithFlags(&begin, cudaEventDefault), "cudaEventCreateWithFlags");
  check(cudaEventCreateWithFlags(&end, cudaEventDefault), "cudaEventCreateWithFlags");
  int before = 0;
  while (before < 3) call(before++);
  std::vector<float> times;
  for (int run = 0; run < runs; ++run) {
    check(cudaEventRecord(begin, stream), "cudaEventRecord");
    for (int i = 0; i < calls; ++i) call(before++);
    check(cudaEventRecord(end, stream), "cudaEventRecord");
    check(cudaEventSynchronize(end), "cudaEventSynchronize");
    check(cudaEventElapsedTime(&times.emplace_back(), begin, end), "cudaEventElapsedTime");
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[times.size() / 2]) * 1e-3 / calls;
}

inline constexpr size_t kColdBytes = size_t{512} << 20;  ///< larger than any cache

/// Returns the bytes per second that a copy within device memory reads and writes, added together.
inline double copy_bandwidth(cudaStream_t stream, size_t bytes = kColdBytes) {
  const DeviceBytes from(bytes);
  const DeviceBytes to(bytes);
  const double time = seconds(stream, [&](int) {
    check(cudaMemcpyAsync(to.as<>(), from.as<>(), bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  });
  return 2.0 * static_cast<double>(bytes) / time;
}

}  // namespace millrace::bench
