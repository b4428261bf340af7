#pragma once

#include <array>
#include <cstddef>

namespace millrace::sched {

/// Weighted least squares over N terms, none of which may be negative. It keeps sums over the samples (information
/// form), which can be added to one another, or scaled down to forget. Plain data.
template <size_t N>
class NonNegativeLeastSquares {
 public:
  using Vector = std::array<double, N>;

  /// Adds a sample whose terms should sum up to `target` by the solution.
  void add(const Vector& terms, double target, double weight) {
    for (size_t i = 0; i < N; ++i) {
      for (size_t j = 0; j < N; ++j) products_[i][j] += weight * terms[i] * terms[j];
      targets_[i] += weight * terms[i] * target;
    }
  }
  /// Adds all samples of another problem, with their weights scaled.
  void add(const NonNegativeLeastSquares& other, double weight) {
    for (size_t i = 0; i < N; ++i) {
      for (size_t j = 0; j < N; ++j) products_[i][j] += weight * other.products_[i][j];
      targets_[i] += weight * other.targets_[i];
    }
  }

  /// Returns Σ w·t² of one term over the samples.
  [[nodiscard]] double square(size_t term) const { return products_[term][term]; }

  /// Returns the non-negative solution with the smallest error. Terms that no sample had are 0. `near`: the solution of
  /// a problem that differs little, which saves time only.
  [[nodiscard]] Vector solve(const Vector& near = {}) const {
    NonNegativeLeastSquares ridged = *this;
    for (size_t i = 0; i < N; ++i) ridged.products_[i][i] *= 1 + kRidge;
    unsigned likely = 0;
    for (size_t i = 0; i < N; ++i) likely |= near[i] > 0 ? 1u << i : 0;
    Vector best{};
    if (ridged.solve_subset(likely, best) && ridged.is_optimal(likely, best)) return best;
    return ridged.best_of_all();
  }

 private:
  /// A relative ridge, which keeps systems solvable whose terms have always changed together.
  static constexpr double kRidge = 1e-9;
  /// Relative to its target: a slope nearer to 0 may be an artefact of rounding.
  static constexpr double kClearSlope = 1e-9;

  // 32 sets of at most 5 terms cost a few microseconds.
  [[nodiscard]] Vector best_of_all() const {
    double best_gain = 0;
    Vector best{};
    for (unsigned subset = 1; subset < (1u << N); ++subset) {
      Vector solution{};
      if (!solve_subset(subset, solution)) continue;
      // The squared error of a solution is Σ w·t² minus its gain.
      double gain = 0;
      for (size_t i = 0; i < N; ++i) gain += targets_[i] * solution[i];
      if (gain > best_gain) {
        best_gain = gain;
        best = solution;
      }
    }
    return best;
  }

  // The conditions of Karush, Kuhn and Tucker: the terms of the set are positive, and more of any other term that a
  // sample had would increase the error.
  [[nodiscard]] bool is_optimal(unsigned subset, const Vector& solution) const {
    for (size_t i = 0; i < N; ++i) {
      double slope = targets_[i];
      for (size_t j = 0; j < N; ++j) slope -= products_[i][j] * solution[j];
      const bool holds = (subset >> i & 1) != 0 ? solution[i] > 0 : slope < -kClearSlope * targets_[i];
      if (!holds && products_[i][i] > 0) return false;
    }
    return true;
  }

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
