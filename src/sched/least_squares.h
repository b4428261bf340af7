#pragma once

#include <array>
#include <cstddef>

namespace millrace::sched {

/// Weighted least squares over N terms of which none may be negative, in information form: sums over the samples, which
/// can be scaled down to be forgotten, and added to one another. Plain data.
template <size_t N>
class NonNegativeLeastSquares {
 public:
  using Vector = std::array<double, N>;

  void add(const Vector& terms, double target, double weight) {
    for (size_t i = 0; i < N; ++i) {
      for (size_t j = 0; j < N; ++j) products_[i][j] += weight * terms[i] * terms[j];
      targets_[i] += weight * terms[i] * target;
    }
  }
  void add(const NonNegativeLeastSquares& other, double weight) {
    for (size_t i = 0; i < N; ++i) {
      for (size_t j = 0; j < N; ++j) products_[i][j] += weight * other.products_[i][j];
      targets_[i] += weight * other.targets_[i];
    }
  }

  /// By trying every set of non-zero terms: of the sets whose solution is non-negative, the one with the least error.
  /// 32 sets of at most 5 terms cost a few microseconds. Terms that no sample had are 0.
  [[nodiscard]] Vector solve() const {
    NonNegativeLeastSquares ridged = *this;
    for (size_t i = 0; i < N; ++i) ridged.products_[i][i] *= 1 + kRidge;
    double best_gain = 0;
    Vector best{};
    for (unsigned subset = 1; subset < (1u << N); ++subset) {
      Vector solution{};
      if (!ridged.solve_subset(subset, solution)) continue;
      // At a solution the squared error is Σ w·t² minus this.
      double gain = 0;
      for (size_t i = 0; i < N; ++i) gain += ridged.targets_[i] * solution[i];
      if (gain > best_gain) {
        best_gain = gain;
        best = solution;
      }
    }
    return best;
  }

 private:
  /// Relative; keeps systems solvable whose terms have always changed together.
  static constexpr double kRidge = 1e-9;

  // Gaussian elimination with pivots on the diagonal: the matrix is symmetric and positive definite.
  [[nodiscard]] bool solve_subset(unsigned subset, Vector& solution) const {
    std::array<size_t, N> terms{};
    size_t count = 0;
    for (size_t i = 0; i < N; ++i) {
      if ((subset >> i & 1) != 0) terms[count++] = i;
    }
    std::array<Vector, N> matrix{};
    Vector right{};
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = 0; j < count; ++j) matrix[i][j] = products_[terms[i]][terms[j]];
      right[i] = targets_[terms[i]];
    }
    for (size_t pivot = 0; pivot < count; ++pivot) {
      if (!(matrix[pivot][pivot] > 0)) return false;
      for (size_t row = pivot + 1; row < count; ++row) {
        const double factor = matrix[row][pivot] / matrix[pivot][pivot];
        for (size_t column = pivot; column < count; ++column) matrix[row][column] -= factor * matrix[pivot][column];
        right[row] -= factor * right[pivot];
      }
    }
    for (size_t row = count; row-- > 0;) {
      double value = right[row];
      for (size_t column = row + 1; column < count; ++column) value -= matrix[row][column] * solution[terms[column]];
      value /= matrix[row][row];
      if (!(value >= 0)) return false;
      solution[terms[row]] = value;
    }
    return true;
  }

  std::array<Vector, N> products_{};  // Σ w·φ·φᵀ
  Vector targets_{};                  // Σ w·φ·t
};

}  // namespace millrace::sched
