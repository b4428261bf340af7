#include "app/stage_backend.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/machine.h"
#include "cpu/cpu_backend.h"

namespace millrace::app {
namespace {

Result<void> check_isa(tensor::Isa wanted) {
  std::string available;
  for (const tensor::Isa each : cpu::available_isas()) {
    if (each == wanted) return {};
    available += fmt::format("{}{}", available.empty() ? "" : ", ", enum_name(each));
  }
  return make_error(ErrorCode::kInvalidArgument, "--cpu-isa {}: this processor has {}", enum_name(wanted), available);
}

/// Returns the CPUs that the stage's threads are bound to, one each; empty without --pin-threads.
Result<std::vector<int>> cpus_of_stage(const NodeOptions& node, int32_t stage_count, int32_t index) {
  if (!node.pin_threads) return std::vector<int>();
  const std::vector<int> allowed = Machine::allowed_processors();
  const int32_t threads = threads_per_stage(node.threads, stage_count);
  if (std::cmp_less(allowed.size(), threads * stage_count)) {
    return make_error(ErrorCode::kInvalidArgument, "--pin-threads: {} threads want a CPU each, this process may use {}",
                      threads * stage_count, allowed.size());
  }
  const auto first = allowed.begin() + threads * index;
  return std::vector<int>(first, first + threads);
}

Result<std::unique_ptr<tensor::Backend>> make_cpu_backend(const sched::StageConfig& stage, const NodeOptions& node,
                                                          int32_t stage_count, int32_t index) {
  if (stage.isa) RETURN_IF_ERROR(check_isa(*stage.isa));
  const auto cpus = cpus_of_stage(node, stage_count, index);
  if (cpus.has_error()) return cpus.error();
  return cpu::make_backend({.threads = threads_per_stage(node.threads, stage_count),
                            .compute_dtype = stage.dtype,
                            .isa = stage.isa,
                            .pin = *cpus});
}

}  // namespace

int32_t threads_per_stage(int32_t threads, int32_t stage_count) {
  if (threads <= 0) threads = static_cast<int32_t>(Machine().processors());
  return std::max(1, threads / stage_count);
}

Result<std::unique_ptr<tensor::Backend>> make_stage_backend(DeviceKind device, const sched::StageConfig& stage,
                                                            const NodeOptions& node, int32_t stage_count,
                                                            int32_t index) {
  const int32_t all_stages = stage_count * node.ring_count;
  const int32_t number = stage_count * node.ring + index;
  if (device == DeviceKind::kCuda && stage.dtype != tensor::DType::kBF16) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--dtype {}: a GPU computes in bf16; wanted auto, bf16, or --device cpu", enum_name(stage.dtype));
  }
  return device == DeviceKind::kCuda ? make_gpu_backend(all_stages, number, node)
                                     : make_cpu_backend(stage, node, all_stages, number);
}

}  // namespace millrace::app
