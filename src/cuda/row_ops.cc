#include "cuda/row_ops.h"

#include "base/check.h"
#include "cuda/operands.h"
#include "cuda/row_kernels.h"

namespace millrace::cuda {
namespace {

using tensor::DType;
using tensor::Matrix;

int32_t rows_of(const Matrix& matrix) {
  return static_cast<int32_t>(matrix.rows);
}
int32_t cols_of(const Matrix& matrix) {
  return static_cast<int32_t>(matrix.cols);
}

void check_vector(const char* name, const CudaVector* vector, int64_t wanted) {
  CHECK(vector == nullptr || vector->size() == wanted, "{} has {} values, wanted {}", name, vector->size(), wanted);
}

}  // namespace

void check_matrix(const char* name, const Matrix& matrix, DType dtype, int64_t rows, int64_t cols) {
  CHECK(matrix.dtype == dtype && matrix.rows == rows && matrix.cols == cols, "{} is {} [{}, {}], wanted {} [{}, {}]",
        name, to_string(matrix.dtype), matrix.rows, matrix.cols, to_string(dtype), rows, cols);
}

void matmul_f32(const Device& device, const Matrix& x, const CudaWeight& weight, const CudaVector* bias,
                const Matrix& out) {
  check_matrix("x", x, DType::kBF16, x.rows, weight.in_features());
  check_matrix("out", out, out.dtype, x.rows, weight.out_features());
  check_vector("bias", bias, out.cols);
  cuda::matmul_f32(device.compute.get(), x.data, static_cast<const float*>(weight.get().data), values_of(bias),
                   rows_of(x), cols_of(x), cols_of(out), out.data,
                   out.dtype == DType::kF32 ? OutputType::kF32 : OutputType::kBF16);
}

void add_embedding(const Device& device, const CudaEmbedding& table, const int32_t* indices, int64_t count,
                   const Matrix& hidden) {
  check_matrix("hidden", hidden, DType::kF32, count, table.width());
  cuda::add_embedding(device.compute.get(), table.data(), static_cast<int32_t>(table.vocab()), cols_of(hidden), indices,
                      rows_of(hidden), floats(hidden));
}

void layer_norm(const Device& device, const Matrix& hidden, const CudaVector& weight, const CudaVector* bias,
                float epsilon, bool in_place, const Matrix& out) {
  check_matrix("hidden", hidden, DType::kF32, hidden.rows, weight.size());
  check_matrix("out", out, DType::kBF16, hidden.rows, hidden.cols);
  check_vector("bias", bias, hidden.cols);
  cuda::layer_norm(device.compute.get(), floats(hidden), weight.data(), values_of(bias), epsilon, in_place,
                   rows_of(hidden), cols_of(hidden), out.data);
}

void convert(const Device& device, const Matrix& hidden, const Matrix& out) {
  check_matrix("hidden", hidden, DType::kF32, out.rows, out.cols);
  check_matrix("out", out, DType::kBF16, hidden.rows, hidden.cols);
  convert_to_bf16(device.compute.get(), hidden.data, SourceType::kF32,
                  static_cast<size_t>(hidden.rows) * static_cast<size_t>(hidden.cols), out.data);
}

void scale(const Device& device, const Matrix& matrix, float factor) {
  check_matrix("matrix", matrix, DType::kF32, matrix.rows, matrix.cols);
  cuda::scale(device.compute.get(), floats(matrix), rows_of(matrix), cols_of(matrix), factor);
}

void soft_cap(const Device& device, const Matrix& matrix, float cap) {
  check_matrix("matrix", matrix, DType::kF32, matrix.rows, matrix.cols);
  cuda::soft_cap(device.compute.get(), floats(matrix), rows_of(matrix), cols_of(matrix), cap);
}

void gelu(const Device& device, const Matrix& in, const Matrix& out) {
  check_matrix("in", in, DType::kF32, out.rows, out.cols);
  check_matrix("out", out, DType::kBF16, in.rows, in.cols);
  cuda::gelu(device.compute.get(), floats(in), rows_of(in), cols_of(in), out.data);
}

void gelu_tanh_mul(const Device& device, const Matrix& in, const Matrix& out) {
  check_matrix("in", in, DType::kF32, out.rows, 2 * out.cols);
  check_matrix("out", out, DType::kBF16, in.rows, out.cols);
  cuda::gelu_tanh_mul(device.compute.get(), floats(in), rows_of(out), cols_of(out), out.data);
}

void gelu_tanh_gate(const Device& device, const Matrix& gates, const Matrix& factors, int64_t first,
                    const Matrix& out) {
  check_matrix("gates", gates, DType::kF32, out.rows, out.cols);
  check_matrix("factors", factors, DType::kF32, out.rows, factors.cols);
  check_matrix("out", out, DType::kBF16, gates.rows, gates.cols);
  CHECK(first >= 0 && first + out.cols <= factors.cols, "columns from {} to {} of {}", first, first + out.cols,
        factors.cols);
  cuda::gelu_tanh_gate(device.compute.get(), floats(gates), floats(factors) + first, cols_of(factors), rows_of(out),
                       cols_of(out), out.data);
}

void scaled_silu_mul(const Device& device, const Matrix& in, float factor, const Matrix& out) {
  check_matrix("in", in, DType::kF32, out.rows, 2 * out.cols);
  check_matrix("out", out, DType::kBF16, in.rows, out.cols);
  cuda::scaled_silu_mul(device.compute.get(), floats(in), factor, rows_of(out), cols_of(out), out.data);
}

void relu_squared(const Device& device, const Matrix& in, const Matrix& out) {
  check_matrix("in", in, DType::kF32, out.rows, out.cols);
  check_matrix("out", out, DType::kBF16, in.rows, in.cols);
  cuda::relu_squared(device.compute.get(), floats(in), rows_of(in), cols_of(in), out.data);
}

void rms_norm_in_place(const Device& device, const Matrix& values, const CudaVector& weight, float epsilon) {
  check_matrix("values", values, DType::kF32, values.rows, weight.size());
  rms_norm_columns(device.compute.get(), floats(values), rows_of(values), cols_of(values), 0, cols_of(values),
                   weight.data(), epsilon);
}

void gate(const Device& device, const Matrix& values, const Matrix& gates) {
  check_matrix("values", values, DType::kBF16, gates.rows, gates.cols);
  check_matrix("gates", gates, DType::kF32, values.rows, values.cols);
  cuda::gate(device.compute.get(), values.data, floats(gates), rows_of(values), cols_of(values));
}

void add_gated_sums(const Device& device, const Matrix& sums, const Matrix& gates, const Matrix& hidden) {
  check_matrix("sums", sums, DType::kF32, hidden.rows, hidden.cols);
  check_matrix("gates", gates, DType::kF32, hidden.rows, 1);
  check_matrix("hidden", hidden, DType::kF32, sums.rows, sums.cols);
  cuda::add_gated_sums(device.compute.get(), floats(sums), floats(gates), rows_of(hidden), cols_of(hidden),
                       floats(hidden));
}

void add_scaled_sums(const Device& device, const Matrix& sums, const CudaVector* bias, const CudaVector* norm,
                     float epsilon, float factor, const Matrix& hidden) {
  check_matrix("sums", sums, DType::kF32, hidden.rows, hidden.cols);
  check_matrix("hidden", hidden, DType::kF32, sums.rows, sums.cols);
  check_vector("bias", bias, sums.cols);
  check_vector("norm", norm, sums.cols);
  cuda::add_scaled_sums(device.compute.get(), floats(sums), values_of(bias), values_of(norm), epsilon, factor,
                        rows_of(hidden), cols_of(hidden), floats(hidden));
}

void norm_all_heads(const Device& device, const Matrix& qkv, const CudaVector& q_norm, const CudaVector& k_norm,
                    float epsilon) {
  check_matrix("qkv", qkv, DType::kF32, qkv.rows, q_norm.size() + 2 * k_norm.size());
  const auto query = static_cast<int32_t>(q_norm.size());
  const auto key = static_cast<int32_t>(k_norm.size());
  rms_norm_columns(device.compute.get(), floats(qkv), rows_of(qkv), cols_of(qkv), 0, query, q_norm.data(), epsilon);
  rms_norm_columns(device.compute.get(), floats(qkv), rows_of(qkv), cols_of(qkv), query, key, k_norm.data(), epsilon);
}

}  // namespace millrace::cuda
