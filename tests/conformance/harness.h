#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cpu/reference.h"
#include "support/test_seed.h"
#include "tensor/backend.h"
#include "tensor/kv_dtype.h"

/// The shared parts of the conformance tests: the backends to test, and matrices that move between host and device.
namespace millrace::test {

using reference::Values;

struct BackendCase {
  std::string name;
  std::function<std::unique_ptr<tensor::Backend>()> make;
  /// The dtype of GEMM inputs: the compute dtype, or f32 without a bf16 dot product.
  tensor::DType product_dtype = tensor::DType::kF32;
  /// Says whether GEMMs with 8-bit weights keep them and scale the sums of groups. Otherwise the weights are rounded to
  /// `product_dtype`, and results have the bits of GEMMs with such weights.
  bool scales_sums = false;
  [[nodiscard]] tensor::DType w8_dtype() const { return scales_sums ? tensor::DType::kF32 : product_dtype; }
  /// Makes a backend with the same kernels that packs weights of `product_dtype` unchanged.
  std::function<std::unique_ptr<tensor::Backend>()> make_plain = {};
  tensor::DType table_dtype = tensor::DType::kF32;  ///< dtype of embedding tables
};

/// Returns the backends that a program tests, each in every compute dtype that it has. The program defines it.
[[nodiscard]] std::vector<BackendCase> backend_cases();

/// A backend whose KV cache has codes of 8 bits.
struct CodedBackend {
  std::string name;
  tensor::KvDType stored = tensor::KvDType::kInt8;
  std::unique_ptr<tensor::Backend> backend;
};
/// Returns a backend per backend of the program, compute dtype and dtype of codes. The program defines it.
[[nodiscard]] std::vector<CodedBackend> coded_backends();

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  [[nodiscard]] int64_t integer(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  [[nodiscard]] Values normal(int64_t count, float deviation = 1.0f) {
    std::normal_distribution<float> distribution(0.0f, deviation);
    Values values(static_cast<size_t>(count));
    for (float& value : values) value = distribution(engine_);
    return values;
  }
  [[nodiscard]] std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_;
};

/// A matrix on a backend, with its memory.
struct DeviceMatrix {
  tensor::Buffer buffer;
  tensor::Matrix matrix;
};
[[nodiscard]] DeviceMatrix make_matrix(tensor::Backend& backend, tensor::DType dtype, int64_t rows, int64_t cols);
/// Copies values to the device. Called inside submitted work only.
void upload(tensor::Backend& backend, const Values& values, const DeviceMatrix& to);
[[nodiscard]] Values download(tensor::Backend& backend, const tensor::Matrix& from);

/// Returns five groups of 32 weights: zeros, one below any scale, two near the maximum, infinity, and NaN.
[[nodiscard]] Values extreme_weights();

/// Values in a checkpoint's format, at an odd address on purpose.
class HostMatrix {
 public:
  HostMatrix(const Values& values, tensor::DType dtype, int64_t rows, int64_t cols);
  [[nodiscard]] tensor::HostTensor tensor() const;

 private:
  std::vector<std::byte> bytes_;
  tensor::DType dtype_;
  tensor::Shape shape_;
};

/// Fails unless |got - wanted| <= absolute + relative · |wanted| everywhere.
void check_close(const Values& got, const Values& wanted, double relative, double absolute);
/// Fails unless |got - wanted| <= absolute + relative · |wanted| + further[i] everywhere.
void check_close(const Values& got, const Values& wanted, double relative, double absolute, const Values& further);

/// Returns the root of the mean square of values; 0 of none.
[[nodiscard]] double root_mean_square(const Values& values);

/// Returns the relative rounding error of a compute dtype.
[[nodiscard]] inline double unit(tensor::DType dtype) {
  return dtype == tensor::DType::kBF16 ? 0x1p-8 : 0x1p-21;
}

}  // namespace millrace::test
