#include "cuda/device.h"

#include <fmt/core.h>

#include <stdexcept>

#include "cuda/select_gemm.h"
#include "cuda/error.h"
#include "cuda/kernels.h"

namespace millrace::cuda {
namespace {

/// The first architecture with the instructions that the ops use.
constexpr int kMinMajor = 8;
/// The minimum driver: drivers of one major version serve all of its runtimes.
constexpr int kMinDriver = CUDART_VERSION / 1000 * 1000;

int make_device_current(int ordinal) {
  check(cudaSetDevice(ordinal), "cudaSetDevice");
  return ordinal;
}

cudaDeviceProp properties(int ordinal) {
  cudaDeviceProp found{};
  check(cudaGetDeviceProperties(&found, ordinal), "cudaGetDeviceProperties");
  return found;
}

/// Makes a GPU current and checks that the ops can run on it.
int checked(int ordinal) {
  make_device_current(ordinal);  // says what is wrong with the number
  if (properties(ordinal).major < kMinMajor) {
    throw std::runtime_error(fmt::format("CUDA: device {} is {}, wanted compute capability {}.0 or later", ordinal,
                                         describe_device(ordinal), kMinMajor));
  }
  return ordinal;
}

/// Throws unless a part works like the whole GPU: with memory, a kernel and an event that are not its own.
void probe_device(int ordinal, const Partition& part) {
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

GpuPart make_gpu_part(int ordinal, int part, int part_count) {
  if (part_count <= 1) return {};
  auto partition = Partition::make(ordinal, part, part_count);
  if (partition.has_error()) return {nullptr, fmt::format(", not divided: {}", partition.error().message)};
  try {
    probe_device(ordinal, **partition);
  } catch (const std::runtime_error& error) {
    return {nullptr, fmt::format(", not divided: {}", error.what())};
  }
  std::string text = fmt::format(", part {} of {}, {} SMs", part + 1, part_count, (*partition)->multiprocessors());
  return {std::move(*partition), std::move(text)};
}

Device::Device(const CudaOptions& options)
    : ordinal(checked(options.device)),
      gpu_part(make_gpu_part(ordinal, options.part, options.part_count)),
      products((load_kernels(), select_gemm(options.products, ordinal, set_up, options.warn))),
      fp8_products(options.fp8_products != Fp8Products::kOff && products == MatrixInstruction::kWgmma),
      poller(ordinal, options.lost) {
  if (options.fp8_products == Fp8Products::kOn && !fp8_products && options.warn) {
    options.warn(
        fmt::format("device {}: products in FP8 need wgmma, which it does not use; inputs keep 16 bits", ordinal));
  }
}

void Device::make_current() const {
  (void)make_device_current(ordinal);
}

std::byte* Device::scratch(GrowingBuffer& buffer, size_t bytes) {
  bool grown = false;
  std::byte* data = buffer.reserve(ordinal, bytes, set_up, grown);
  if (grown) ++relocations;
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
                      version(kMinDriver));
  }
  if (outcome == cudaErrorNoDevice || (outcome == cudaSuccess && count == 0)) {
    return make_error(ErrorCode::kUnavailable, "the CUDA driver finds no usable GPU");
  }
  if (outcome != cudaSuccess) return make_error(ErrorCode::kUnavailable, "CUDA: {}", describe_error(outcome));
  std::vector<GpuInfo> gpus;
  bool any_fits = false;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    const cudaDeviceProp found = properties(ordinal);
    any_fits = any_fits || found.major >= kMinMajor;
    gpus.push_back({describe_device(ordinal), found.totalGlobalMem});
  }
  if (!any_fits) {
    return make_error(ErrorCode::kUnavailable, "{}; wanted compute capability {}.0 or later", gpus.front().description,
                      kMinMajor);
  }
  return gpus;
}

uint64_t free_bytes(int ordinal) {
  size_t free = 0;
  size_t total = 0;
  make_device_current(ordinal);
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
