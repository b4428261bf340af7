#include "cuda/device.h"

#include <fmt/core.h>

#include <stdexcept>

#include "cuda/choose_products.h"
#include "cuda/error.h"
#include "cuda/kernels.h"

namespace millrace::cuda {
namespace {

/// The first architecture with the instructions that the ops are made of.
constexpr int kLeastMajor = 8;
/// Drivers of one major version serve all runtimes of it.
constexpr int kLeastDriver = CUDART_VERSION / 1000 * 1000;

int made_current(int ordinal) {
  check(cudaSetDevice(ordinal), "cudaSetDevice");
  return ordinal;
}

cudaDeviceProp properties(int ordinal) {
  cudaDeviceProp found{};
  check(cudaGetDeviceProperties(&found, ordinal), "cudaGetDeviceProperties");
  return found;
}

/// A GPU that the ops can run on, made current.
int checked(int ordinal) {
  made_current(ordinal);  // says what is wrong with the number
  if (properties(ordinal).major < kLeastMajor) {
    throw std::runtime_error(fmt::format("CUDA: device {} is {}, wanted compute capability {}.0 or later", ordinal,
                                         describe_device(ordinal), kLeastMajor));
  }
  return ordinal;
}

/// That a part does what the whole GPU does: memory, a kernel and an event that are not its own. Throws.
void try_out(int ordinal, const Partition& part) {
  constexpr size_t kCount = 64;
  const Stream stream{{.partition = &part}};
  const tensor::Buffer floats = allocate_device(ordinal, kCount * sizeof(float), stream);
  const tensor::Buffer halves = allocate_device(ordinal, kCount * sizeof(uint16_t), stream);
  const Event done;
  convert_to_bf16(stream.get(), floats.data(), SourceType::kF32, kCount, halves.data());
  done.record(stream);
  check(cudaStreamWaitEvent(stream.get(), done.get(), 0), "cudaStreamWaitEvent");
  stream.synchronize();
  check(cudaEventQuery(done.get()), "cudaEventQuery");
}

}  // namespace

Division divide_device(int ordinal, int part, int part_count) {
  if (part_count <= 1) return {};
  auto partition = Partition::make(ordinal, part, part_count);
  if (partition.has_error()) return {nullptr, fmt::format(", not divided: {}", partition.error().message)};
  try {
    try_out(ordinal, **partition);
  } catch (const std::runtime_error& error) {
    return {nullptr, fmt::format(", not divided: {}", error.what())};
  }
  std::string text = fmt::format(", part {} of {}, {} SMs", part + 1, part_count, (*partition)->multiprocessors());
  return {std::move(*partition), std::move(text)};
}

Device::Device(const CudaOptions& options)
    : ordinal(checked(options.device)),
      division(divide_device(ordinal, options.part, options.part_count)),
      products((load_kernels(), choose_products(options.products, ordinal, set_up, options.warn))),
      poller(ordinal, options.lost) {}

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
                      version(kLeastDriver));
  }
  if (outcome == cudaErrorNoDevice || (outcome == cudaSuccess && count == 0)) {
    return make_error(ErrorCode::kUnavailable, "a CUDA driver, but no GPU that it can use");
  }
  if (outcome != cudaSuccess) return make_error(ErrorCode::kUnavailable, "CUDA: {}", describe_error(outcome));
  std::vector<GpuInfo> gpus;
  bool any_fits = false;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    const cudaDeviceProp found = properties(ordinal);
    any_fits = any_fits || found.major >= kLeastMajor;
    gpus.push_back({describe_device(ordinal), found.totalGlobalMem});
  }
  if (!any_fits) {
    return make_error(ErrorCode::kUnavailable, "{}; wanted compute capability {}.0 or later", gpus.front().description,
                      kLeastMajor);
  }
  return gpus;
}

uint64_t free_bytes(int ordinal) {
  size_t free = 0;
  size_t total = 0;
  made_current(ordinal);
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
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
