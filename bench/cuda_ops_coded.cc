// GEMMs with weights of 4 and 8 bits, which are dequantized to bf16 on their way: the share of copy bandwidth at which
// few rows read them, the rate of many rows, and cuBLASLt's time with weights in bf16.

#include <fmt/core.h>

#include "cuda/kernels.h"
#include "cuda/weight_layout.h"
#include "cuda_lt.h"
#include "cuda_ops_parts.h"

namespace millrace::bench {
namespace {

struct Format {
  const char* name;
  cuda::WeightFormat format;
};

/// Formats of `--quantization w4`, of GPTQ and AWQ in groups of 128, of Q4_K, NVFP4, FP8 in blocks of 128, and `w8`,
/// and of Q8_0, Q5_K and Q6_K.
constexpr Format kFormats[] = {
    {"w4", {cuda::WeightCodes::kInt4, cuda::CodeScales::kBf16, 2}},
    {"gptq", {cuda::WeightCodes::kInt4, cuda::CodeScales::kF16Zero, 1}},
    {"q4_k", {cuda::WeightCodes::kInt4, cuda::CodeScales::kF16Factors, 1}},
    {"nvfp4", {cuda::WeightCodes::kTable4, cuda::CodeScales::kE4M3Halves, 1}},
    {"fp8", {cuda::WeightCodes::kE4M3, cuda::CodeScales::kF32, 1}},
    {"fp8x8", {cuda::WeightCodes::kE4M3Both, cuda::CodeScales::kF32, 1}},
    {"w8", {cuda::WeightCodes::kInt8, cuda::CodeScales::kBf16, 2}},
    {"q8_0", {cuda::WeightCodes::kInt8, cuda::CodeScales::kF16, 2}},
    {"q5_k", {cuda::WeightCodes::kInt8, cuda::CodeScales::kF16Factors, 1}},
    {"q6_k", {cuda::WeightCodes::kInt8, cuda::CodeScales::kInt8Halves, 1}},
};

/// Copies of one weight that take turns. Random bits are codes and scales as good as any.
class CodedWeights {
 public:
  CodedWeights(const OpsOptions& options, const cuda::WeightFormat& format, int inputs, int outputs)
      : weight_{.out_features = outputs, .in_features = inputs, .format = format},
        bytes_(cuda::coded_weight_bytes(weight_)),
        copies_(options.cold_copies(bytes_)),
        memory_(random_bf16(copies_ * bytes_ / sizeof(uint16_t))) {}
  [[nodiscard]] size_t bytes() const { return bytes_; }
  [[nodiscard]] cuda::DeviceWeight turn(int call, cuda::MatrixInstruction by) const {
    cuda::DeviceWeight weight = weight_;
    weight.data = memory_.as<std::byte>() + static_cast<size_t>(call) % copies_ * bytes_;
    weight.by = by;
    return weight;
  }

 private:
  cuda::DeviceWeight weight_;
  size_t bytes_;
  size_t copies_;
  DeviceBytes memory_;
};

size_t workspace_bytes(const cuda::DeviceWeight& weight, int rows) {
  const bool is_fp8 = weight.format.codes == cuda::WeightCodes::kE4M3Both;
  return is_fp8 ? cuda::fp8_workspace_bytes(weight, rows) : cuda::dequantizing_workspace_bytes(weight, rows);
}

/// Returns whether a GEMM of this format exists.
bool can_measure(const cuda::WeightFormat& format, int inputs, const OpsOptions& options) {
  if (format.codes != cuda::WeightCodes::kE4M3Both) return true;
  return inputs % cuda::kFp8StepInputs == 0 && options.has_wgmma();
}

/// Returns the seconds of cuBLASLt's GEMM with weights in bf16 that take turns; 0 where there is none.
double plain_time(cudaStream_t stream, const OpsOptions& options, const DeviceBytes& x, const DeviceBytes& out,
                  int rows, int inputs, int outputs) {
  std::string missing;
  const LtLibrary* lt = load_lt(missing);
  if (lt == nullptr) return 0.0;
  const size_t elements = static_cast<size_t>(inputs) * static_cast<size_t>(outputs);
  const size_t copies = options.cold_copies(elements * sizeof(uint16_t));
  const DeviceBytes weights = random_bf16(copies * elements);
  try {
    LtProduct product(*lt, rows, inputs, outputs);
    return seconds(stream, [&](int i) {
      product.run(stream, x.as<>(), weights.as<uint16_t>() + static_cast<size_t>(i) % copies * elements, out.as<>());
    });
  } catch (const std::exception&) {
    return 0.0;  // ours is what is measured
  }
}

}  // namespace

void measure_coded(cudaStream_t stream, const OpsOptions& options, double copy_rate) {
  struct Shape {
    const char* name;
    int inputs, outputs;
  };
  const Shape shapes[] = {{"o", options.heads * options.head_dim, options.hidden},
                          {"gate_up", options.hidden, 2 * options.intermediate},
                          {"down", options.intermediate, options.hidden}};
  const auto by = options.has_wgmma() ? cuda::MatrixInstruction::kWgmma : cuda::MatrixInstruction::kMma;
  fmt::print("\nGEMMs with coded weights, by {}: share of copy bandwidth, rate, and the time of cuBLASLt in bf16\n",
             options.has_wgmma() ? "wgmma" : "mma");
  for (const Shape& shape : shapes) {
    for (const Format& each : kFormats) {
      if (!can_measure(each.format, shape.inputs, options)) continue;
      const CodedWeights weights(options, each.format, shape.inputs, shape.outputs);
      for (const int rows : options.rows) {
        const DeviceBytes x = random_bf16(static_cast<size_t>(rows) * static_cast<size_t>(shape.inputs));
        const DeviceBytes out(static_cast<size_t>(rows) * static_cast<size_t>(shape.outputs) * sizeof(float));
        const DeviceBytes workspace(workspace_bytes(weights.turn(0, by), rows));
        const double time = seconds(stream, [&](int i) {
          cuda::matmul(stream, x.as<>(), weights.turn(i, by), nullptr, rows, out.as<>(), cuda::OutputType::kF32,
                       workspace.as<>());
        });
        const bool is_first = &each == &kFormats[0];
        const double plain = is_first ? plain_time(stream, options, x, out, rows, shape.inputs, shape.outputs) : 0.0;
        fmt::print("{:<8} {:<5} rows {:>4}: {:8.1f} us {:5.2f} of copy {:6.1f} TFLOP/s", shape.name, each.name, rows,
                   time * 1e6, static_cast<double>(weights.bytes()) / time / copy_rate,
                   2.0 * shape.inputs * shape.outputs * rows / time * 1e-12);
        if (plain > 0.0) fmt::print(" | cuBLASLt {:8.1f} us, {:.2f} times ours", plain * 1e6, plain / time);
        fmt::print("\n");
      }
    }
  }
}

}  // namespace millrace::bench
