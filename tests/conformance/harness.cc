#include "conformance/harness.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace millrace::test {

using tensor::DType;

DeviceMatrix make_matrix(tensor::Backend& backend, DType dtype, int64_t rows, int64_t cols) {
  DeviceMatrix result;
  result.buffer = backend.allocate(static_cast<size_t>(rows * cols) * tensor::size_of(dtype));
  result.matrix = {.data = result.buffer.data(), .dtype = dtype, .rows = rows, .cols = cols};
  return result;
}

void upload(tensor::Backend& backend, const Values& values, const DeviceMatrix& to) {
  const HostMatrix host(values, to.matrix.dtype, to.matrix.rows, to.matrix.cols);
  backend.copy_to_device({host.tensor().data, to.matrix.bytes()}, to.matrix.data);
}

Values download(tensor::Backend& backend, const tensor::Matrix& from) {
  std::vector<std::byte> bytes(from.bytes());
  backend.copy_to_host(from.data, bytes);
  return reference::to_floats({.name = "", .dtype = from.dtype, .shape = {from.rows, from.cols}, .data = bytes.data()});
}

HostMatrix::HostMatrix(const Values& values, DType dtype, int64_t rows, int64_t cols)
    : bytes_(values.size() * tensor::size_of(dtype) + 1), dtype_(dtype), shape_{rows, cols} {
  // Ranks make theirs at the same time, and Catch2's assertions belong to one thread.
  if (static_cast<int64_t>(values.size()) != rows * cols) throw std::logic_error("values of another matrix");
  for (size_t i = 0; i < values.size(); ++i) {
    std::byte* to = bytes_.data() + 1 + i * tensor::size_of(dtype);
    if (dtype == DType::kF32) {
      std::memcpy(to, &values[i], sizeof(float));
    } else {
      const _Float16 half = static_cast<_Float16>(values[i]);
      const uint16_t bits =
          dtype == DType::kBF16 ? tensor::BFloat16::from_float(values[i]).bits : std::bit_cast<uint16_t>(half);
      std::memcpy(to, &bits, sizeof(bits));
    }
  }
}

tensor::HostTensor HostMatrix::tensor() const {
  return {.name = "test", .dtype = dtype_, .shape = shape_, .data = bytes_.data() + 1};
}

void check_close(const Values& got, const Values& wanted, double relative, double absolute) {
  check_close(got, wanted, relative, absolute, Values(wanted.size(), 0.0f));
}

void check_close(const Values& got, const Values& wanted, double relative, double absolute, const Values& further) {
  REQUIRE(got.size() == wanted.size());
  REQUIRE(further.size() == wanted.size());
  size_t wrong = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double bound = absolute + relative * std::abs(double{wanted[i]}) + double{further[i]};
    if (std::abs(double{got[i]} - double{wanted[i]}) <= bound) continue;
    if (++wrong <= 5) UNSCOPED_INFO("element " << i << ": got " << got[i] << ", wanted " << wanted[i]);
  }
  REQUIRE(wrong == 0);
}

double root_mean_square(const Values& values) {
  double sum = 0.0;
  for (const float value : values) sum += double{value} * value;
  return values.empty() ? 0.0 : std::sqrt(sum / static_cast<double>(values.size()));
}

Values extreme_weights() {
  Values weights(160, 0.0f);
  weights[32] = 1e-38f;
  weights[64] = 3e38f;
  weights[65] = -3e38f;
  weights[96] = std::numeric_limits<float>::infinity();
  weights[129] = std::numeric_limits<float>::quiet_NaN();
  return weights;
}

}  // namespace millrace::test
