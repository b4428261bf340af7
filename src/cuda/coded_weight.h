#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "cuda/kernels.h"
#include "tensor/fp8.h"
#include "tensor/code_matrix.h"
#include "tensor/w8.h"

/// Packs weights of 4 and 8 bits on the host, in the layout of weight_layout.h.
namespace millrace::cuda {

/// A matrix of 4 or 8 bits, borrowed.
class CodedPart {
 public:
  explicit CodedPart(const tensor::CodeMatrix& matrix) : matrix_(&matrix) {}
  explicit CodedPart(const tensor::W8Matrix& matrix) : matrix_(&matrix) {}
  explicit CodedPart(const tensor::Fp8Matrix& matrix) : matrix_(&matrix) {}

  [[nodiscard]] const std::string& name() const {
    return *std::visit([](const auto* matrix) { return &matrix->name; }, matrix_);
  }
  [[nodiscard]] int64_t rows() const {
    return std::visit([](const auto* matrix) { return matrix->rows; }, matrix_);
  }
  [[nodiscard]] int64_t cols() const {
    return std::visit([](const auto* matrix) { return matrix->cols; }, matrix_);
  }
  /// Returns the matrix where it is of that kind, else null.
  [[nodiscard]] const tensor::CodeMatrix* codes() const { return found<tensor::CodeMatrix>(); }
  [[nodiscard]] const tensor::W8Matrix* w8() const { return found<tensor::W8Matrix>(); }
  [[nodiscard]] const tensor::Fp8Matrix* fp8() const { return found<tensor::Fp8Matrix>(); }
  /// Returns whether all weights of a row from a column on to the next multiple of `inputs` share a scale.
  [[nodiscard]] bool shares_scale(int64_t col, int64_t inputs) const;
  /// Returns whether they share the scale of a group of codes, without its further factors.
  [[nodiscard]] bool shares_group(int64_t col, int64_t inputs) const;
  /// Returns the weights in bf16, [rows, cols].
  [[nodiscard]] std::vector<tensor::BFloat16> dequantized() const;

 private:
  [[nodiscard]] bool is_within_group(int64_t group, int64_t col, int64_t inputs) const;
  template <class Matrix>
  [[nodiscard]] const Matrix* found() const {
    const auto* const pointer = std::get_if<const Matrix*>(&matrix_);
    return pointer == nullptr ? nullptr : *pointer;
  }

  std::variant<const tensor::CodeMatrix*, const tensor::W8Matrix*, const tensor::Fp8Matrix*> matrix_;
};

/// Some columns of the packed matrix and those of the parts that they hold. `packed` begins a step. `source` begins a
/// unit, unless all weights of a row share a scale.
struct PackedColumns {
  int32_t packed = 0;
  int64_t source = 0;
  int64_t count = 0;
};

/// Returns whether units of the packed matrix hold weights that share a scale.
[[nodiscard]] bool can_pack(const CodedPart& part, std::span<const PackedColumns> columns);
/// Returns whether parts in E4M3 can be multiplied as kE4M3Both: steps of 128 inputs hold weights that share a scale.
[[nodiscard]] bool can_multiply_fp8(std::span<const CodedPart> parts, std::span<const PackedColumns> columns);
/// Returns the format of parts that are packed together, which fit together.
[[nodiscard]] WeightFormat format_of(std::span<const CodedPart> parts, std::span<const PackedColumns> columns);

/// A weight whose parts are stacked or, with gate_up, the pair of gate and up. `weight` has its format and sizes.
struct CodedWeight {
  std::vector<CodedPart> parts;
  std::vector<PackedColumns> columns;
  DeviceWeight weight;

  /// Packs a panel to zeroed memory.
  void pack_panel(int32_t panel, std::byte* to) const;

 private:
  /// A row of a part; part is null for padding.
  struct Source {
    const CodedPart* part = nullptr;
    int64_t row = 0;
  };
  [[nodiscard]] Source source_of(int32_t packed_row) const;
  void pack_row(const Source& source, int32_t panel_row, std::byte* to) const;
};

/// Checks that a part is small enough and has `cols` columns.
void check_coded(const CodedPart& part, int64_t cols);
/// Returns the description of a weight of one kind in all columns of its parts.
[[nodiscard]] CodedWeight coded_weight(std::vector<CodedPart> parts, bool gate_up, MatrixInstruction by);
/// Returns those of parts that are packed one above the other: a weight for each run of one kind.
[[nodiscard]] std::vector<CodedWeight> coded_stack(std::span<const tensor::CodeMatrix> parts, MatrixInstruction by);

}  // namespace millrace::cuda
