#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "cpu/blocked_gemm.h"
#include "cpu/ops.h"

namespace millrace::cpu {
namespace {

using tensor::DType;
using tensor::Matrix;

/// The GEMMs of one operand with all layouts of a weight, as one sequence of blocks.
class GemmSequence {
 public:
  GemmSequence(const Device& device, const PackedLhs& lhs, int64_t rows, const CpuPackedWeight& weight,
               bool integer_sums) {
    int64_t feature = 0;
    for (const CpuPackedWeight* part = &weight; part != nullptr; part = part->rest()) {
      parts_.push_back({BlockedGemm(device, lhs, rows, *part, integer_sums), block_count_, feature});
      block_count_ += parts_.back().product.block_count();
      scratch_bytes_ = std::max(scratch_bytes_, parts_.back().product.scratch_bytes());
      feature += part->own_features();
    }
  }

  [[nodiscard]] int64_t block_count() const { return block_count_; }
  [[nodiscard]] size_t scratch_bytes() const { return scratch_bytes_; }

  /// Computes some blocks and hands the sums of their panels to finish(PanelResult).
  template <class Epilogue>
  void run(int64_t begin, int64_t end, std::byte* scratch, const Epilogue& finish) const {
    for (const Part& part : parts_) {
      const int64_t last = std::min(end - part.first_block, part.product.block_count());
      for (int64_t block = std::max<int64_t>(begin - part.first_block, 0); block < last; ++block) {
        part.product.run(block, scratch, [&](PanelResult sums) {
          sums.feature += part.first_feature;
          finish(sums);
        });
      }
    }
  }

 private:
  struct Part {
    BlockedGemm product;
    int64_t first_block = 0;
    int64_t first_feature = 0;
  };
  std::vector<Part> parts_;
  int64_t block_count_ = 0;
  size_t scratch_bytes_ = 0;
};

/// Computes every panel for every block of rows and hands the sums to finish(PanelResult). With `magnitudes`, those of
/// pack_lhs(), the sums are integers.
template <class Epilogue>
void for_each_panel(Device& device, const Matrix& x, const CpuPackedWeight& weight, const Epilogue& finish,
                    const float* magnitudes = nullptr) {
  check_matrix("x", x, device.compute_dtype, x.rows, weight.in_features());
  const GemmSequence product(device, pack_lhs(device, x, weight.layout(), magnitudes), x.rows, weight,
                             magnitudes != nullptr);
  device.pool.run_ranges(product.block_count(), [&](int64_t begin, int64_t end, int slot) {
    std::byte* const scratch = device.slot_scratch[static_cast<size_t>(slot)].reserve(product.scratch_bytes());
    product.run(begin, end, scratch, finish);
  });
}

void check_bias(const CpuVector* bias, int64_t features) {
  CHECK(bias == nullptr || bias->size() == features, "a bias of {} for {} features", bias->size(), features);
}

void check_integers(const tensor::IntMatrix& sums, int64_t rows, const CpuPackedWeight& weight) {
  CHECK(weight.has_row_scales(), "a weight without row scales");
  CHECK(sums.rows == rows && sums.cols == weight.out_features(), "sums are [{}, {}], wanted [{}, {}]", sums.rows,
        sums.cols, rows, weight.out_features());
}

/// Finds the largest magnitude of each row over the ranks for Device::magnitudes.
void find_largest_magnitudes(Device& device, const Matrix& magnitudes, int64_t rows) {
  check_matrix("magnitudes", magnitudes, DType::kF32, rows, magnitudes.cols);
  device.magnitudes.resize(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) {
    const auto* const of_ranks = row_of<float>(magnitudes, row);
    // Magnitudes are ordered as their bits, NaN above all.
    device.magnitudes[static_cast<size_t>(row)] = *std::max_element(
        of_ranks, of_ranks + magnitudes.cols,
        [](float left, float right) { return std::bit_cast<uint32_t>(left) < std::bit_cast<uint32_t>(right); });
  }
}

std::byte* element_of(const Matrix& matrix, int64_t row, int64_t col) {
  return row_of<std::byte>(matrix, row) + static_cast<size_t>(col) * tensor::size_of(matrix.dtype);
}

}  // namespace

void matmul(Device& device, Matrix x, const CpuPackedWeight& weight, const CpuVector* bias, Matrix out) {
  CHECK(!weight.gate_up(), "a gate-up weight is for matmul_silu_mul");
  CHECK(out.dtype == DType::kF32 || out.dtype == device.compute_dtype, "a GEMM result cannot be stored as {}",
        tensor::to_string(out.dtype));
  check_matrix("out", out, out.dtype, x.rows, weight.out_features());
  check_bias(bias, weight.out_features());
  for_each_panel(device, x, weight, [&](const PanelResult& sums) {
    for (int64_t i = 0; i < sums.rows; ++i) {
      if (bias != nullptr) device.kernels.add(bias->data() + sums.feature, sums.row(i), sums.features);
      device.store_row(sums.row(i), element_of(out, sums.first_row + i, sums.feature), out.dtype, sums.features);
    }
  });
}

void matmul_add(Device& device, Matrix x, const CpuPackedWeight& weight, const CpuVector* bias, Matrix hidden) {
  CHECK(!weight.gate_up(), "a gate-up weight is for matmul_silu_mul");
  check_matrix("hidden", hidden, DType::kF32, x.rows, weight.out_features());
  check_bias(bias, weight.out_features());
  for_each_panel(device, x, weight, [&](const PanelResult& sums) {
    for (int64_t i = 0; i < sums.rows; ++i) {
      if (bias != nullptr) device.kernels.add(bias->data() + sums.feature, sums.row(i), sums.features);
      device.kernels.add(sums.row(i), row_of<float>(hidden, sums.first_row + i) + sums.feature, sums.features);
    }
  });
}

void row_magnitudes(Device& device, Matrix x, Matrix out) {
  check_matrix("x", x, device.compute_dtype, x.rows, x.cols);
  check_matrix("out", out, DType::kF32, x.rows, 1);
  device.for_rows(x.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      *row_of<float>(out, row) =
          device.kernels.largest_magnitude(row_of<std::byte>(x, row), x.dtype == DType::kBF16, x.cols);
    }
  });
}

void matmul_integers(Device& device, Matrix x, const CpuPackedWeight& weight, Matrix magnitudes,
                     tensor::IntMatrix sums) {
  check_integers(sums, x.rows, weight);
  find_largest_magnitudes(device, magnitudes, x.rows);
  for_each_panel(
      device, x, weight,
      [&](const PanelResult& result) {
        for (int64_t i = 0; i < result.rows; ++i) {
          std::memcpy(sums.data + (result.first_row + i) * sums.cols + result.feature, result.row(i),
                      static_cast<size_t>(result.features) * sizeof(int32_t));
        }
      },
      device.magnitudes.data());
}

void scale_integers(Device& device, tensor::IntMatrix sums, const CpuPackedWeight& weight, Matrix magnitudes,
                    Matrix out) {
  check_integers(sums, out.rows, weight);
  check_matrix("out", out, DType::kF32, out.rows, weight.out_features());
  find_largest_magnitudes(device, magnitudes, out.rows);
  device.for_rows(out.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float row_scale = channel_row_scale(device.magnitudes[static_cast<size_t>(row)]);
      const float* const column_scales = weight.column_scales(0);
      const int32_t* const integers = sums.data + row * sums.cols;
      float* const values = row_of<float>(out, row);
      for (int64_t i = 0; i < sums.cols; ++i)
        values[i] = static_cast<float>(integers[i]) * (column_scales[i] * row_scale);
    }
  });
}

void add_sums(Device& device, Matrix sums, const CpuVector* bias, Matrix hidden) {
  check_matrix("sums", sums, DType::kF32, hidden.rows, hidden.cols);
  check_matrix("hidden", hidden, DType::kF32, hidden.rows, hidden.cols);
  check_bias(bias, hidden.cols);
  device.for_rows(hidden.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      if (bias != nullptr) device.kernels.add(bias->data(), row_of<float>(sums, row), sums.cols);
      device.kernels.add(row_of<float>(sums, row), row_of<float>(hidden, row), sums.cols);
    }
  });
}

void add_gated_sums(Device& device, Matrix sums, Matrix gates, Matrix hidden) {
  check_matrix("sums", sums, DType::kF32, hidden.rows, hidden.cols);
  check_matrix("gates", gates, DType::kF32, hidden.rows, 1);
  check_matrix("hidden", hidden, DType::kF32, hidden.rows, hidden.cols);
  device.for_rows(hidden.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float gate = 1.0f / (1.0f + std::exp(-*row_of<float>(gates, row)));
      auto* const out = row_of<float>(hidden, row);
      device.kernels.add_expert(row_of<float>(sums, row), gate, out, nullptr, 0, hidden.cols, out);
    }
  });
}

void matmul_silu_mul(Device& device, Matrix x, const CpuPackedWeight& weight, Matrix out) {
  CHECK(weight.gate_up(), "matmul_silu_mul needs a weight from pack_gate_up");
  check_matrix("out", out, device.compute_dtype, x.rows, weight.out_features());
  const size_t stride = static_cast<size_t>(out.cols) * tensor::size_of(out.dtype);
  for_each_panel(device, x, weight, [&](const PanelResult& sums) {
    std::byte* const to = element_of(out, sums.first_row, sums.feature);
    device.kernels.activate_rows({}, sums.c, sums.rows, sums.features, out.dtype == DType::kBF16, to, stride);
  });
}

}  // namespace millrace::cpu
