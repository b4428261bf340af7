#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace millrace::server {

/// Counts values by fixed upper bounds, which outlive it. Plain code, one thread.
class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds) : bounds_(bounds), counts_(bounds.size() + 1) {}

  void observe(double value) {
    const auto bound = std::ranges::lower_bound(bounds_, value);
    ++counts_[static_cast<size_t>(bound - bounds_.begin())];
    sum_ += value;
  }
  [[nodiscard]] std::span<const double> bounds() const { return bounds_; }
  /// Returns the count per bucket; the last holds what exceeds all bounds.
  [[nodiscard]] std::span<const uint64_t> counts() const { return counts_; }
  [[nodiscard]] double sum() const { return sum_; }

 private:
  std::span<const double> bounds_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
};

}  // namespace millrace::server
