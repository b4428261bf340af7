#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/enum_names.h"
#include "tensor/backend.h"
#include "tensor/kv_dtype.h"

namespace millrace::cuda {

/// The instruction of GEMMs. kAuto is wgmma where the GPU has it and it agrees with mma at the start, else mma.
enum class GemmChoice : uint8_t { kAuto, kWgmma, kMma };

inline constexpr EnumName<GemmChoice> kGemmChoiceNames[] = {
    {GemmChoice::kAuto, "auto"},
    {GemmChoice::kWgmma, "wgmma"},
    {GemmChoice::kMma, "mma"},
};
constexpr std::span<const EnumName<GemmChoice>> enum_names(GemmChoice) {
  return kGemmChoiceNames;
}

/// Says whether inputs of weights that are stored in FP8 are rounded to FP8. kAuto: where the GPU has wgmma.
enum class Fp8Products : uint8_t { kAuto, kOn, kOff };

inline constexpr EnumName<Fp8Products> kFp8ProductsNames[] = {
    {Fp8Products::kAuto, "auto"},
    {Fp8Products::kOn, "on"},
    {Fp8Products::kOff, "off"},
};
constexpr std::span<const EnumName<Fp8Products>> enum_names(Fp8Products) {
  return kFp8ProductsNames;
}

/// Says how the ranks of a stage exchange. kCopies is for ranks of one process that share a GPU, or have no NCCL:
/// copies on the device, which no graph holds. Work is then launched on a thread of the backend, since ranks wait there
/// for each other's launches.
enum class RankExchange : uint8_t { kNccl, kCopies };

struct CudaOptions {
  int device = 0;
  GemmChoice products = GemmChoice::kAuto;
  tensor::KvDType kv_dtype = tensor::KvDType::kAuto;  ///< of pages
  Fp8Products fp8_products = Fp8Products::kOff;
  bool graphs = true;    ///< replay decode steps as CUDA graphs
  bool channels = true;  ///< offer channels to devices of other processes
  RankExchange rank_exchange = RankExchange::kNccl;
  /// Says that work waits on the host for other rings, with which the stage shares experts. A thread of the backend
  /// then launches it, as with kCopies, so that an abort need not wait.
  bool waits_for_rings = false;
  /// Runs on one of `part_count` equal parts of the GPU's multiprocessors. Where division is impossible it uses all of
  /// them, and the backend's description says why.
  int part = 0;
  int part_count = 1;
  /// A callback for a failure from which the device does not recover, called once, on a thread of the backend. All
  /// later calls of this process then fail. The failed work has been reported before.
  std::function<void(const std::string& reason)> lost;
  /// A callback on the thread that launches with text for the log, such as a reason why steps are slower than they
  /// could be.
  std::function<void(const std::string& what)> warn;
};

/// Makes a Backend on a GPU that computes in bf16 and keeps the residual stream in f32. It owns streams, scratch and
/// one thread that polls for completion. Several backends may share a GPU. The submitting thread launches the work,
/// unless ranks exchange by copies or rings share experts.
/// Throws std::runtime_error when the device is unusable or its memory is short.
[[nodiscard]] std::unique_ptr<tensor::Backend> make_backend(const CudaOptions& options);

}  // namespace millrace::cuda
