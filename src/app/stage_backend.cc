#include "app/stage_backend.h"

#include "base/machine.h"
#include "base/thread_affinity.h"
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

Result<std::unique_ptr<tensor::Backend>> make_cpu_backend(const sched::StageConfig& stage, const NodeOptions& node,
                                                          const NodeRank& rank) {
  if (stage.isa) RETURN_IF_ERROR(check_isa(*stage.isa));
  const auto processors = rank_processors(node, rank, Machine().numa_nodes());
  if (processors.has_error()) return processors.error();
  const ScopedAffinity near(processors->near);
  return cpu::make_backend({.threads = threads_per_rank(node.threads, rank.count()),
                            .compute_dtype = stage.dtype,
                            .kv_dtype = stage.kv_dtype,
                            .isa = stage.isa,
                            .pin = processors->pin});
}

}  // namespace

Result<std::unique_ptr<tensor::Backend>> make_rank_backend(DeviceKind device, const sched::StageConfig& stage,
                                                           const NodeOptions& node, const NodeRank& rank) {
  if (device == DeviceKind::kCuda && stage.dtype != tensor::DType::kBF16) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--dtype {}: a GPU computes in bf16; wanted auto, bf16, or --device cpu", enum_name(stage.dtype));
  }
  return device == DeviceKind::kCuda ? make_gpu_backend(rank, node, stage) : make_cpu_backend(stage, node, rank);
}

}  // namespace millrace::app
