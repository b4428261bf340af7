#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

/// What bench/cuda_ops.cc measures with: device memory, event timing, and cuBLASLt's product as the ceiling.
namespace millrace::bench {

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(fmt::format("{}: {}", what, cudaGetErrorString(status)));
}
inline void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(fmt::format("{}: {}", what, cublasLtGetStatusString(status)));
}

/// Zeroed device memory.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes) : bytes_(bytes) {
    check(cudaMalloc(&data_, std::max<size_t>(bytes, 16)), "cudaMalloc");
    check(cudaMemset(data_, 0, std::max<size_t>(bytes, 16)), "cudaMemset");
  }
  template <class T>
  explicit DeviceBytes(const std::vector<T>& values) : DeviceBytes(values.size() * sizeof(T)) {
    check(cudaMemcpy(data_, values.data(), bytes_, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  DeviceBytes(DeviceBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBytes& operator=(DeviceBytes&&) = delete;
  ~DeviceBytes() { cudaFree(data_); }
  template <class T = void>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_);
  }
  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Small random bf16 numbers: what zeros would let the device save is spent.
inline DeviceBytes random_bf16(size_t count) {
  std::vector<uint16_t> block(std::min<size_t>(count, size_t{1} << 22));
  std::minstd_rand engine(1);
  for (uint16_t& bits : block) {
    const auto word = static_cast<uint32_t>(engine());
    bits = static_cast<uint16_t>((word & 0x807Fu) | ((0x78u + (word >> 8) % 8) << 7));
  }
  DeviceBytes bytes(count * sizeof(uint16_t));
  for (size_t at = 0; at < count; at += block.size()) {
    check(cudaMemcpy(bytes.as<uint16_t>() + at, block.data(), std::min(block.size(), count - at) * sizeof(uint16_t),
                     cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }
  return bytes;
}

/// Seconds per call: the median of `runs`, each of `calls` calls between two events.
inline double seconds(cudaStream_t stream, const std::function<void(int)>& call, int calls = 20, int runs = 7) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  for (int i = 0; i < 3; ++i) call(i);
  std::vector<float> times;
  for (int run = 0; run < runs; ++run) {
    check(cudaEventRecord(begin, stream), "cudaEventRecord");
    for (int i = 0; i < calls; ++i) call(i);
    check(cudaEventRecord(end, stream), "cudaEventRecord");
    check(cudaEventSynchronize(end), "cudaEventSynchronize");
    check(cudaEventElapsedTime(&times.emplace_back(), begin, end), "cudaEventElapsedTime");
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[times.size() / 2]) * 1e-3 / calls;
}

/// out (f32) [rows, outputs] = x (bf16) [rows, inputs] · W (bf16) [outputs, inputs]ᵀ by cuBLASLt's first choice.
class LtProduct {
 public:
  LtProduct(int rows, int inputs, int outputs) : workspace_(size_t{32} << 20) {
    check(cublasLtCreate(&handle_), "cublasLtCreate");
    check(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
          "CUBLASLT_MATMUL_DESC_TRANSA");
    check(cublasLtMatrixLayoutCreate(&weight_, CUDA_R_16BF, inputs, outputs, inputs), "weight layout");
    check(cublasLtMatrixLayoutCreate(&x_, CUDA_R_16BF, inputs, rows, inputs), "x layout");
    check(cublasLtMatrixLayoutCreate(&out_, CUDA_R_32F, outputs, rows, outputs), "out layout");
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    const size_t bytes = workspace_.bytes();
    check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                               sizeof(bytes)),
          "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES");
    int found = 0;
    check(cublasLtMatmulAlgoGetHeuristic(handle_, operation_, weight_, x_, out_, out_, preference, 1, &choice_, &found),
          "cublasLtMatmulAlgoGetHeuristic");
    cublasLtMatmulPreferenceDestroy(preference);
    if (found == 0) throw std::runtime_error("cublasLtMatmulAlgoGetHeuristic: found nothing");
  }
  LtProduct(const LtProduct&) = delete;
  ~LtProduct() {
    for (cublasLtMatrixLayout_t layout : {weight_, x_, out_}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(operation_);
    cublasLtDestroy(handle_);
  }
  void run(cudaStream_t stream, const void* x, const void* weight, void* out) {
    const float one = 1.0f;
    const float zero = 0.0f;
    check(cublasLtMatmul(handle_, operation_, &one, weight, weight_, x, x_, &zero, out, out_, out, out_, &choice_.algo,
                         workspace_.as<>(), workspace_.bytes(), stream),
          "cublasLtMatmul");
  }

 private:
  DeviceBytes workspace_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t weight_ = nullptr;
  cublasLtMatrixLayout_t x_ = nullptr;
  cublasLtMatrixLayout_t out_ = nullptr;
  cublasLtMatmulHeuristicResult_t choice_{};
};

}  // namespace millrace::bench
