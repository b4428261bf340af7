#include "app/devices.h"

#include <dlfcn.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "base/log.h"
#include "base/machine.h"
#include "cpu/cpu_backend.h"
#include "cuda/module.h"

namespace millrace::app {
namespace {

constexpr const char* kModuleFile = "millrace_cuda.so";
constexpr const char* kModuleVariable = "MILLRACE_CUDA_MODULE";

std::filesystem::path module_path() {
  if (const char* given = std::getenv(kModuleVariable)) return given;
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() / kModuleFile;
}

/// Loads the module for good, since backends are made of its code.
Result<const cuda::Module*> load_module() {
  const std::filesystem::path path = module_path();
  if (!std::filesystem::exists(path)) {
    return make_error(ErrorCode::kUnavailable, "no CUDA module: {} does not exist ({} names another place)",
                      path.string(), kModuleVariable);
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return make_error(ErrorCode::kUnavailable, "the CUDA module does not load: {}", dlerror());
  auto* entry = reinterpret_cast<cuda::ModuleEntry*>(dlsym(library, cuda::kModuleEntry));
  const cuda::Module* module = entry == nullptr ? nullptr : entry(cuda::kModuleInterface, MILLRACE_VERSION);
  if (module != nullptr) return module;
  return make_error(ErrorCode::kUnavailable, "{} is no module of millrace {}, interface {}", path.string(),
                    MILLRACE_VERSION, cuda::kModuleInterface);
}

Result<std::vector<cuda::GpuInfo>> list_gpus() {
  const auto module = load_module();
  if (module.has_error()) return module.error();
  return (*module)->list_gpus();
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

double gigabytes(uint64_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

/// Returns "79.2 of 85.0 GB of memory free", or why the GPU cannot be used: another process may have it exclusively.
std::string memory_of(const cuda::Module& module, int device, uint64_t total_bytes) {
  try {
    return fmt::format("{:.1f} of {:.1f} GB of memory free", gigabytes(module.free_bytes(device)),
                       gigabytes(total_bytes));
  } catch (const std::exception& failure) {
    return fmt::format("{:.1f} GB of memory; of no use now: {}", gigabytes(total_bytes), failure.what());
  }
}

/// Why a device is lost. A device is lost to the whole process.
struct LostDevice {
  std::mutex mutex;
  std::optional<std::string> reason;
};

LostDevice& lost() {
  static LostDevice first;
  return first;
}

void on_device_lost(const std::string& reason) {
  {
    const std::lock_guard lock(lost().mutex);
    if (lost().reason) return;
    lost().reason = reason;
  }
  log::error("{}: the process ends", reason);
  (void)kill(getpid(), SIGTERM);
}

}  // namespace

Result<DeviceKind> choose_device(DeviceChoice device, tensor::DType dtype) {
  if (device == DeviceChoice::kCpu) return DeviceKind::kCpu;
  if (device == DeviceChoice::kAuto && dtype == tensor::DType::kF32) {
    log::info("--device auto: cpu (--dtype f32)");
    return DeviceKind::kCpu;
  }
  const auto gpus = list_gpus();
  if (device == DeviceChoice::kCuda) {
    if (gpus.has_value()) return DeviceKind::kCuda;
    return make_error(ErrorCode::kUnavailable, "--device cuda: {}", gpus.error().message);
  }
  if (gpus.has_error()) {
    log::info("--device auto: cpu ({})", gpus.error().message);
    return DeviceKind::kCpu;
  }
  log::info("--device auto: cuda ({} of {})", gpus->size(), gpus->front().description);
  return DeviceKind::kCuda;
}

Result<GpuExchange> choose_rank_exchange(int32_t ranks_here, bool divides_stage, const NodeOptions& options) {
  const auto gpus = list_gpus();
  if (gpus.has_error()) return gpus.error();
  const tensor::ChannelSupport support = (*load_module())->nccl_support(0);
  std::string missing = support.unavailable_reason;
  if (std::cmp_greater(ranks_here, gpus->size())) {
    missing = fmt::format("{} ranks of a stage share {} GPU{}", ranks_here, gpus->size(), gpus->size() == 1 ? "" : "s");
  } else if (options.nccl == NcclMode::kOff) {
    missing = "--nccl off";
  }
  if (missing.empty()) return GpuExchange{.by = cuda::RankExchange::kNccl, .text = support.protocol};
  if (divides_stage) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--nnodes: {}; ranks of a stage on several nodes exchange by NCCL and need a GPU each, wanted "
                      "that, or at most --pp-size nodes",
                      missing);
  }
  if (options.nccl == NcclMode::kOn) {
    return make_error(ErrorCode::kInvalidArgument, "--nccl on: {}, wanted NCCL and a GPU for each rank of a stage",
                      missing);
  }
  return GpuExchange{.by = cuda::RankExchange::kCopies,
                     .text = fmt::format("copies on the device, without graphs: {}", missing)};
}

Result<std::unique_ptr<tensor::Backend>> make_gpu_backend(const NodeRank& rank, const NodeOptions& options,
                                                          const sched::StageConfig& stage) {
  const auto module = load_module();
  if (module.has_error()) return module.error();
  const auto gpus = (*module)->list_gpus();
  if (gpus.has_error()) return gpus.error();
  const auto gpu_count = static_cast<int32_t>(gpus->size());
  const int32_t gpu = rank.index() % gpu_count;
  cuda::CudaOptions backend{.device = gpu,
                            .products = options.gemm,
                            .kv_dtype = stage.kv_dtype,
                            .fp8_products = options.fp8_products,
                            .graphs = options.cuda_graphs,
                            .channels = options.nccl != NcclMode::kOff,
                            .waits_for_rings = stage.shares_experts(),
                            .lost = on_device_lost,
                            .warn = [](const std::string& what) { log::warn("{}", what); }};
  if (rank.rank_count > 1) {
    const auto exchange = choose_rank_exchange(rank.rank_count, false, options);
    if (exchange.has_error()) return exchange.error();
    backend.rank_exchange = exchange->by;
  }
  if (options.divide_gpu) {
    backend.part = rank.index() / gpu_count;
    backend.part_count = (rank.count() - gpu + gpu_count - 1) / gpu_count;
  }
  return (*module)->make_backend(backend);
}

std::optional<std::string> lost_device() {
  const std::lock_guard lock(lost().mutex);
  return lost().reason;
}

std::string describe_devices() {
  std::string sets;
  for (const cpu::Isa isa : cpu::available_isas()) sets += fmt::format(" {}", cpu::to_string(isa));
  const auto host = cpu::make_backend({.threads = 1})->memory();
  const size_t nodes = Machine().numa_nodes().size();
  std::string text = fmt::format(
      "cpu     {}, {} CPUs on {} NUMA node{}, instruction sets{}; {:.1f} GB of memory available\n", processor_name(),
      Machine().processors(), nodes, nodes == 1 ? "" : "s", sets, gigabytes(host.available_bytes));
  const auto gpus = list_gpus();
  if (gpus.has_error()) return text + fmt::format("cuda    none: {}\n", gpus.error().message);
  for (size_t i = 0; i < gpus->size(); ++i) {
    const cuda::GpuInfo& gpu = (*gpus)[i];
    text += fmt::format("cuda {}  {}; {}\n", i, gpu.description,
                        memory_of(**load_module(), static_cast<int>(i), gpu.total_bytes));
  }
  return text;
}

}  // namespace millrace::app
