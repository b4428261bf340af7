#include "cuda/dequantizing_gemm.cuh"
#include "cuda/fp8_gemm.cuh"

namespace millrace::cuda {
namespace {

struct Operands {
  const void* x = nullptr;
  const DeviceWeight& weight;
  const float* bias = nullptr;
  int32_t rows = 0;
  void* out = nullptr;
  Epilogue epilogue = Epilogue::kStoreF32;
  void* workspace = nullptr;
};

GemmParams params_of(const Operands& given) {
  const DeviceWeight& weight = given.weight;
  return {.x = static_cast<const uint16_t*>(given.x),
          .weight = static_cast<const std::byte*>(weight.data),
          .bias = given.bias,
          .out = given.out,
          .partials = reinterpret_cast<float*>(static_cast<std::byte*>(given.workspace) + kCounterBytes),
          .arrived = static_cast<uint32_t*>(given.workspace),
          .rows = given.rows,
          .inputs = weight.in_features,
          .features = weight.out_features,
          .panels = panel_count(weight.out_features, weight.gate_up),
          .splits = splits_of_weight(weight, step_count(weight.in_features)),
          .epilogue = given.epilogue,
          .format = weight.format,
          .first_column = weight.first_column,
          .columns = weight.columns};
}

void run_gemm(cudaStream_t stream, const Operands& given) {
  const DeviceWeight& weight = given.weight;
  const GemmParams product = params_of(given);
  if (weight.format.codes == WeightCodes::kBf16) return run_bf16(stream, product, weight.by);
  if (weight.format.codes == WeightCodes::kE4M3Both) return run_fp8(stream, product, weight, given.workspace);
  run_dequantizing(stream, product, weight.by, given.workspace);
}

void check_gate_up(const char* op, const DeviceWeight& weight, bool wanted) {
  if (weight.gate_up == wanted) return;
  throw std::invalid_argument(std::string(op) + ": found a weight packed " + (wanted ? "as rows" : "as gate and up") +
                              ", wanted the other kind");
}

}  // namespace

void run_bf16(cudaStream_t stream, const GemmParams& product, MatrixInstruction by) {
  if (takes_wide(product, by)) return run_wide<false>(stream, product);
  with_tiling(by, tile_tokens(product.rows), [&](auto tiling) {
    using T = decltype(tiling);
    launch_tiles<gemm_kernel<T>, T>("product", stream, product);
  });
}

bool has_wgmma() {
#if defined(MILLRACE_EMULATED_CUDA)
  return true;
#elif defined(MILLRACE_SM_90A)
  int device = 0;
  int major = 0;
  int minor = 0;
  check_launch("product", "cudaGetDevice", cudaGetDevice(&device));
  check_launch("product", "cudaDeviceGetAttribute",
               cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  check_launch("product", "cudaDeviceGetAttribute",
               cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return major == 9 && minor == 0;
#else
  return false;
#endif
}

size_t matmul_workspace_bytes(const DeviceWeight& weight, int32_t rows) {
  return split_workspace_bytes(splits_of_weight(weight, step_count(weight.in_features)),
                               panel_count(weight.out_features, weight.gate_up), rows);
}

void matmul(cudaStream_t stream, const void* x, const DeviceWeight& weight, const float* bias, int32_t rows, void* out,
            OutputType type, void* workspace) {
  check_gate_up("matmul", weight, false);
  const Epilogue epilogue = type == OutputType::kF32 ? Epilogue::kStoreF32 : Epilogue::kStoreBf16;
  run_gemm(
      stream,
      {.x = x, .weight = weight, .bias = bias, .rows = rows, .out = out, .epilogue = epilogue, .workspace = workspace});
}

void matmul_add(cudaStream_t stream, const void* x, const DeviceWeight& weight, const float* bias, int32_t rows,
                float* hidden, void* workspace) {
  check_gate_up("matmul_add", weight, false);
  run_gemm(stream, {.x = x,
                    .weight = weight,
                    .bias = bias,
                    .rows = rows,
                    .out = hidden,
                    .epilogue = Epilogue::kAddF32,
                    .workspace = workspace});
}

void matmul_silu_mul(cudaStream_t stream, const void* x, const DeviceWeight& weight, int32_t rows, void* out,
                     void* workspace) {
  check_gate_up("matmul_silu_mul", weight, true);
  run_gemm(stream, {.x = x,
                    .weight = weight,
                    .bias = nullptr,
                    .rows = rows,
                    .out = out,
                    .epilogue = Epilogue::kSiluMul,
                    .workspace = workspace});
}

}  // namespace millrace::cuda
