#include "cuda/device.h"

#include <fmt/core.h>

#include "cuda/error.h"

namespace millrace::cuda {
namespace {

int made_current(int ordinal) {
  check(cudaSetDevice(ordinal), "cudaSetDevice");
  return ordinal;
}

cudaDeviceProp properties(int ordinal) {
  cudaDeviceProp found{};
  check(cudaGetDeviceProperties(&found, ordinal), "cudaGetDeviceProperties");
  return found;
}

}  // namespace

Device::Device(int number) : ordinal(made_current(number)), poller(number) {}

void Device::make_current() const {
  (void)made_current(ordinal);
}

std::byte* Device::scratch(GrowingBuffer& buffer, size_t bytes) {
  bool grown = false;
  std::byte* data = buffer.reserve(ordinal, bytes, set_up, grown);
  if (grown) ++moves;
  return data;
}

Result<std::vector<GpuInfo>> list_gpus() {
  int driver = 0;
  int count = 0;
  (void)cudaDriverGetVersion(&driver);
  if (driver == 0) return make_error(ErrorCode::kUnavailable, "no CUDA driver");
  const auto version = [](int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); };
  const cudaError_t outcome = cudaGetDeviceCount(&count);
  if (outcome == cudaErrorInsufficientDriver) {
    return make_error(ErrorCode::kUnavailable, "the CUDA driver is for CUDA {}, wanted {} or later", version(driver),
                      version(CUDART_VERSION));
  }
  if (outcome == cudaErrorNoDevice || (outcome == cudaSuccess && count == 0)) {
    return make_error(ErrorCode::kUnavailable, "a CUDA driver, but no GPU that it can use");
  }
  if (outcome != cudaSuccess) return make_error(ErrorCode::kUnavailable, "CUDA: {}", describe_error(outcome));
  std::vector<GpuInfo> gpus;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    size_t free = 0;
    size_t total = 0;
    check(cudaSetDevice(ordinal), "cudaSetDevice");
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    gpus.push_back({describe_device(ordinal), total, free});
  }
  return gpus;
}

std::string unique_name(int ordinal) {
  const cudaDeviceProp found = properties(ordinal);
  std::string name = "GPU-";
  for (const char byte : found.uuid.bytes) name += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return name;
}

std::string architecture(int ordinal) {
  const cudaDeviceProp found = properties(ordinal);
  return fmt::format("sm_{}{}", found.major, found.minor);
}

std::string describe_device(int ordinal) {
  const cudaDeviceProp found = properties(ordinal);
  return fmt::format("{}, {}, {} SMs", found.name, architecture(ordinal), found.multiProcessorCount);
}

}  // namespace millrace::cuda
