#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "tensor/backend.h"

/// What stages can compute on here: this host's processor, and GPUs through a module that is looked for at run time.
namespace millrace::app {

enum class DeviceKind : uint8_t { kCpu, kCuda };

/// Of `--device` and `--dtype`: auto is cuda where a GPU can be used and f32 is not asked for, else cpu, and says in
/// the log which and why. kUnavailable for cuda where there is no module, no driver or no GPU.
[[nodiscard]] Result<DeviceKind> choose_device(const std::string& device, const std::string& dtype);
struct GpuOptions {
  bool graphs = true;             ///< replay decode steps
  std::string products = "auto";  ///< what they go by: auto, wgmma, mma
  bool channels = true;           ///< to devices of other processes
  bool divide = false;            ///< stages that share a GPU get equal parts of its multiprocessors
};
/// Of stage `index` of `stage_count`: on GPU `index` modulo their number. Throws std::runtime_error when that GPU
/// cannot be used.
[[nodiscard]] Result<std::unique_ptr<tensor::Backend>> make_gpu_backend(int32_t stage_count, int32_t index,
                                                                        const GpuOptions& options);
/// Of a GPU that was lost to this process, whose kernels or whose hardware failed, why; the process then gets a
/// SIGTERM, since only another one can use that GPU again.
[[nodiscard]] std::optional<std::string> lost_device();
/// A line per device, for `millrace devices`; where there is no GPU, why.
[[nodiscard]] std::string describe_devices();

}  // namespace millrace::app
