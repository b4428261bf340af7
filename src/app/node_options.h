#pragma once

#include <chrono>
#include <cstdint>

#include "app/page_storage.h"
#include "base/enum_names.h"
#include "cuda/cuda_backend.h"

namespace millrace::app {

/// What `--device` asks for. kAuto is a GPU where one can be used, else the CPU.
enum class DeviceChoice : uint8_t { kAuto, kCpu, kCuda };

inline constexpr EnumName<DeviceChoice> kDeviceChoiceNames[] = {
    {DeviceChoice::kAuto, "auto"},
    {DeviceChoice::kCpu, "cpu"},
    {DeviceChoice::kCuda, "cuda"},
};
constexpr std::span<const EnumName<DeviceChoice>> enum_names(DeviceChoice) {
  return kDeviceChoiceNames;
}

/// Says whether activations between nodes go over NCCL. kOn refuses a ring in which that is impossible.
enum class NcclMode : uint8_t { kAuto, kOn, kOff };

inline constexpr EnumName<NcclMode> kNcclModeNames[] = {
    {NcclMode::kAuto, "auto"},
    {NcclMode::kOn, "on"},
    {NcclMode::kOff, "off"},
};
constexpr std::span<const EnumName<NcclMode>> enum_names(NcclMode) {
  return kNcclModeNames;
}

/// What each node decides for itself by its own flags, however the head configures the stages.
struct NodeOptions {
  int32_t ring = 0;        ///< of these stages, among the rings of the process
  int32_t ring_count = 1;  ///< rings that share the process's threads or GPUs
  DeviceChoice device = DeviceChoice::kAuto;
  int32_t threads = 0;                              ///< of the whole process; 0: one per CPU that it may use
  bool pin_threads = false;                         ///< binds each compute thread to a CPU of its own
  bool cuda_graphs = true;                          ///< replays decode steps on a GPU
  cuda::GemmChoice gemm = cuda::GemmChoice::kAuto;  ///< the instruction of GEMMs on a GPU
  cuda::Fp8Products fp8_products = cuda::Fp8Products::kAuto;
  bool divide_gpu = false;                         ///< gives stages on one GPU equal parts of it
  NcclMode nccl = NcclMode::kAuto;                 ///< activations to GPUs of other nodes
  std::chrono::milliseconds nccl_timeout{60'000};  ///< limit of one transfer over NCCL
  std::chrono::milliseconds ring_timeout{10'000};  ///< silence after which a peer is given up
  StorageOptions storage;
};

}  // namespace millrace::app
