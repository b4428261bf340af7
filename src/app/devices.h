#pragma once

#include <memory>
#include <optional>
#include <string>

#include "app/node_options.h"
#include "app/rank_processors.h"
#include "base/result.h"
#include "sched/stage/stage_config.h"
#include "tensor/backend.h"

/// The devices of this host: its processor, and GPUs through a module that is found at run time.
namespace millrace::app {

enum class DeviceKind : uint8_t { kCpu, kCuda };

/// Resolves `--device`: kAuto is a GPU where one can be used and `dtype` is not f32, else the CPU. The log says which
/// and why. kUnavailable for kCuda where there is no module, no driver or no GPU.
[[nodiscard]] Result<DeviceKind> choose_device(DeviceChoice device, tensor::DType dtype);
/// How the ranks of a stage on GPUs exchange.
struct GpuExchange {
  cuda::RankExchange by = cuda::RankExchange::kNccl;
  std::string text;  ///< for the log: "NCCL 2.27.3", or "copies …" with the reason
};
/// Chooses NCCL where it can be used and every one of the `ranks_here` of a stage has a GPU of its own, else copies. A
/// node that divides a stage with others needs NCCL. Errors: --nccl, --nnodes.
[[nodiscard]] Result<GpuExchange> choose_rank_exchange(int32_t ranks_here, bool divides_stage,
                                                       const NodeOptions& options);
/// Makes the backend of a rank on the GPU of its index modulo the number of GPUs. Throws std::runtime_error when that
/// GPU cannot be used. Errors: --nccl.
[[nodiscard]] Result<std::unique_ptr<tensor::Backend>> make_gpu_backend(const NodeRank& rank,
                                                                        const NodeOptions& options,
                                                                        const sched::StageConfig& stage);
/// Returns why a GPU was lost to this process, if one was: its kernels or its hardware failed. The process has then got
/// a SIGTERM, since only another process can use that GPU again.
[[nodiscard]] std::optional<std::string> lost_device();
/// Returns a line per device, for `millrace devices`, and the reason where there is no GPU.
[[nodiscard]] std::string describe_devices();

}  // namespace millrace::app
