#pragma once

#include <cublasLt.h>
#include <dlfcn.h>

#include <type_traits>

#include "cuda_bench.h"

/// cuBLASLt's GEMM, the ceiling for this project's GEMM.
namespace millrace::bench {

/// The functions of cuBLASLt in use, loaded at run time. Without the library only this project's GEMM is measured.
struct LtLibrary {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
};

/// Loads the library. Returns null, with the reason in `missing`, when it cannot be loaded.
inline const LtLibrary* load_lt(std::string& missing) {
  static LtLibrary found;
  const std::string file = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    missing = dlerror();
    return nullptr;
  }
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) missing = fmt::format("{} has no {}", file, name);
  };
  find("cublasLtCreate", found.create);
  find("cublasLtDestroy", found.destroy);
  find("cublasLtMatmulDescCreate", found.desc_create);
  find("cublasLtMatmulDescDestroy", found.desc_destroy);
  find("cublasLtMatmulDescSetAttribute", found.desc_set);
  find("cublasLtMatrixLayoutCreate", found.layout_create);
  find("cublasLtMatrixLayoutDestroy", found.layout_destroy);
  find("cublasLtMatmulPreferenceCreate", found.preference_create);
  find("cublasLtMatmulPreferenceDestroy", found.preference_destroy);
  find("cublasLtMatmulPreferenceSetAttribute", found.preference_set);
  find("cublasLtMatmulAlgoGetHeuristic", found.get_heuristic);
  find("cublasLtMatmul", found.matmul);
  return missing.empty() ? &found : nullptr;
}

inline void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(fmt::format("{}: cuBLAS status {}", what, static_cast<int>(status)));
  }
}

/// Computes out (f32) [rows, outputs] = x (bf16) [rows, inputs] · W (bf16) [outputs, inputs]ᵀ with cuBLASLt's first
/// choice.
class LtProduct {
 public:
  LtProduct(const LtLibrary& lt, int rows, int inputs, int outputs) : lt_(lt), workspace_(size_t{32} << 20) {
    check(lt_.create(&handle_), "cublasLtCreate");
    check(lt_.desc_create(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(lt_.desc_set(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
          "CUBLASLT_MATMUL_DESC_TRANSA");
    check(lt_.layout_create(&weight_, CUDA_R_16BF, inputs, outputs, inputs), "weight layout");
    check(lt_.layout_create(&x_, CUDA_R_16BF, inputs, rows, inputs), "x layout");
    check(lt_.layout_create(&out_, CUDA_R_32F, outputs, rows, outputs), "out layout");
    cublasLtMatmulPreference_t preference = nullptr;
    check(lt_.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
    const size_t bytes = workspace_.bytes();
    check(lt_.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)),
          "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES");
    int found = 0;
    check(lt_.get_heuristic(handle_, operation_, weight_, x_, out_, out_, preference, 1, &choice_, &found),
          "cublasLtMatmulAlgoGetHeuristic");
    lt_.preference_destroy(preference);
    if (found == 0) throw std::runtime_error("cublasLtMatmulAlgoGetHeuristic: found nothing");
  }
  LtProduct(const LtProduct&) = delete;
  ~LtProduct() {
    for (cublasLtMatrixLayout_t layout : {weight_, x_, out_}) lt_.layout_destroy(layout);
    lt_.desc_destroy(operation_);
    lt_.destroy(handle_);
  }
  void run(cudaStream_t stream, const void* x, const void* weight, void* out) {
    const float one = 1.0f;
    const float zero = 0.0f;
    check(lt_.matmul(handle_, operation_, &one, weight, weight_, x, x_, &zero, out, out_, out, out_, &choice_.algo,
                     workspace_.as<>(), workspace_.bytes(), stream),
          "cublasLtMatmul");
  }

 private:
  const LtLibrary& lt_;
  DeviceBytes workspace_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t weight_ = nullptr;
  cublasLtMatrixLayout_t x_ = nullptr;
  cublasLtMatrixLayout_t out_ = nullptr;
  cublasLtMatmulHeuristicResult_t choice_{};
};

}  // namespace millrace::bench
