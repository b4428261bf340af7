#include "cuda/select_gemm.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "cuda/device.h"
#include "cuda/error.h"
#include "cuda/memory.h"

namespace millrace::cuda {
namespace {

constexpr const char* kMmaHint = "use --cuda-products mma instead";

/// The shapes of the self-test: sums in several splits in tiles of 8 to 128 tokens, and whole sums in tiles of up to
/// 256.
struct ProbeShape {
  int32_t features;
  int32_t inputs;
  std::vector<int32_t> rows;  // the last is the maximum
};
const std::array kProbeShapes = {ProbeShape{72, 520, {1, 9, 17, 33, 70}}, ProbeShape{24, 72, {1, 9, 17, 33, 70, 520}}};

/// Returns bf16 numbers of both signs with magnitudes between 2⁻⁸ and 1.
std::vector<uint16_t> random_numbers(size_t count) {
  constexpr uint32_t kMantissaAndExponent = 0x3FF;
  std::vector<uint16_t> numbers(count);
  uint32_t state = 1;
  for (uint16_t& number : numbers) {
    state = state * 1664525u + 1013904223u;  // Numerical Recipes' generator, whose high bits serve
    number = static_cast<uint16_t>((state >> 16 & 0x8000u) | (0x3B80u + (state >> 20 & kMantissaAndExponent)));
  }
  return numbers;
}

/// Runs the GEMMs of one shape for each number of rows.
class GemmProbe {
 public:
  GemmProbe(const ProbeShape& trial, int device, const Stream& stream)
      : trial_(trial),
        stream_(stream),
        packed_(allocate_device(device, packed_weight_bytes(trial.features, trial.inputs, false), stream)),
        x_(allocate_device(device, elements(trial.rows.back(), trial.inputs) * sizeof(uint16_t), stream)),
        out_(allocate_device(device, elements(trial.rows.back(), trial.features) * sizeof(float), stream)) {
    size_t scratch = 0;
    for (const int32_t rows : trial.rows) {
      scratch = std::max(scratch,
                         matmul_workspace_bytes({.out_features = trial.features, .in_features = trial.inputs}, rows));
    }
    scratch_ = allocate_device(device, scratch, stream);
    const std::vector<uint16_t> weight = random_numbers(elements(trial.features, trial.inputs));
    const tensor::Buffer source = allocate_device(device, weight.size() * sizeof(uint16_t), stream);
    copy(source.data(), weight.data(), source.bytes());
    pack_weight(stream.get(), source.data(), SourceType::kBF16, trial.features, trial.inputs, 0, PackAs::kRows,
                packed_.data());
    const std::vector<uint16_t> x = random_numbers(x_.bytes() / sizeof(uint16_t));
    copy(x_.data(), x.data(), x_.bytes());
  }
  /// Returns the results [rows, features].
  [[nodiscard]] std::vector<float> of(MatrixInstruction by, int32_t rows) const {
    const DeviceWeight weight{.data = packed_.data(),
                              .out_features = trial_.features,
                              .in_features = trial_.inputs,
                              .gate_up = false,
                              .by = by};
    matmul(stream_.get(), x_.data(), weight, nullptr, rows, out_.data(), OutputType::kF32, scratch_.data());
    std::vector<float> values(elements(rows, trial_.features));
    copy(values.data(), out_.data(), values.size() * sizeof(float));
    return values;
  }

 private:
  static size_t elements(int32_t rows, int32_t width) { return static_cast<size_t>(rows) * static_cast<size_t>(width); }
  void copy(void* to, const void* from, size_t bytes) const {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_.get()), "cudaMemcpyAsync");
    stream_.synchronize();
  }

  const ProbeShape& trial_;
  const Stream& stream_;
  tensor::Buffer packed_;
  tensor::Buffer x_;
  tensor::Buffer out_;
  tensor::Buffer scratch_;
};

/// Returns how wgmma deviates from the requirements; empty: not at all.
std::string find_mismatch(const ProbeShape& trial, int device, const Stream& stream) {
  // Relative to the sum of the terms' magnitudes. It exceeds the loss of f32 sums that truncate instead of round.
  constexpr float kTolerance = 0x1p-14f;
  const GemmProbe products(trial, device, stream);
  const std::vector<float> wanted = products.of(MatrixInstruction::kMma, trial.rows.back());
  const std::vector<float> most = products.of(MatrixInstruction::kWgmma, trial.rows.back());
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (std::abs(most[i] - wanted[i]) <= kTolerance * static_cast<float>(trial.inputs)) continue;
    return fmt::format("a sum of {} products is {}, by mma {}", trial.inputs, most[i], wanted[i]);
  }
  for (const int32_t rows : trial.rows) {
    const std::vector<float> some = products.of(MatrixInstruction::kWgmma, rows);
    if (std::memcmp(some.data(), most.data(), some.size() * sizeof(float)) == 0) continue;
    return fmt::format("rows in a batch of {} differ from the same rows in a batch of {}", rows, trial.rows.back());
  }
  return {};
}

std::string find_mismatch(int device, const Stream& stream) {
  try {
    for (const ProbeShape& trial : kProbeShapes) {
      if (std::string found = find_mismatch(trial, device, stream); !found.empty()) return found;
    }
    return {};
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(
        fmt::format("device {}: the self-test of wgmma failed ({}): {}", device, kMmaHint, error.what()));
  }
}

}  // namespace

MatrixInstruction select_gemm(GemmChoice wanted, int device, const Stream& stream,
                              const std::function<void(const std::string& what)>& warn) {
  if (wanted == GemmChoice::kMma) return MatrixInstruction::kMma;
  if (!has_wgmma()) {
    if (wanted == GemmChoice::kAuto) return MatrixInstruction::kMma;
    throw std::runtime_error(
        fmt::format("--cuda-products wgmma: device {} is {}, wanted sm_90, and kernels that were compiled for sm_90a",
                    device, describe_device(device)));
  }
  const std::string found = find_mismatch(device, stream);
  if (found.empty()) return MatrixInstruction::kWgmma;
  if (wanted == GemmChoice::kWgmma) {
    throw std::runtime_error(fmt::format("--cuda-products wgmma: device {} fails the self-test: {}", device, found));
  }
  if (warn) warn(fmt::format("device {}: wgmma fails its self-test, GEMMs use mma instead: {}", device, found));
  return MatrixInstruction::kMma;
}

}  // namespace millrace::cuda
