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

void Device::make_current() const { (void)made_current(ordinal); }

std::byte* Device::scratch(GrowingBuffer& buffer, size_t bytes) {
  bool grown = false;
  std::byte* data = buffer.reserve(ordinal, bytes, set_up, grown);
  if (grown) ++moves;
  return data;
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
