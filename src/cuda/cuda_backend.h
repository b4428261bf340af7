#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/enum_names.h"
#include "tensor/backend.h"

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

struct CudaOptions {
  int device = 0;
  GemmChoice products = GemmChoice::kAuto;
  bool graphs = true;    ///< replay decode steps as CUDA graphs
  bool channels = true;  ///< offer channels to devices of other processes
  /// Run on one of several equal parts of the GPU's multiprocessors. Where that cannot be, on all of them, and the
  /// backend's description says why.
  int part = 0;
  int part_count = 1;
  /// Called once, on a thread of the backend's, after a failure that the device does not recover from: whatever this
  /// process asks of it from now on fails. What failed has been told before.
  std::function<void(const std::string& reason)> lost;
  /// Called with what is worth a line in the log, as steps that go slower than they could, on a thread that submits.
  std::function<void(const std::string& what)> warn;
};

/// A Backend on a GPU: computes in bf16, keeps the residual stream in f32. It owns streams, scratch and one thread that
/// looks for what is complete; several backends may share a GPU. Work is launched by the thread that submits it.
/// Throws std::runtime_error when the device cannot be used or its memory is short.
[[nodiscard]] std::unique_ptr<tensor::Backend> make_backend(const CudaOptions& options);

}  // namespace millrace::cuda
