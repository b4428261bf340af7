#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

namespace millrace::server {

[[nodiscard]] inline double seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

/// Returns model_name="…", as a label.
[[nodiscard]] std::string model_label(std::string_view model_name);
/// Returns `text` as the value of a label may hold it.
[[nodiscard]] std::string escape_label(std::string_view text);

/// Appends metric families in Prometheus' text form. Labels are given without braces, and may be empty.
class MetricWriter {
 public:
  /// Every family's name begins with `prefix`.
  explicit MetricWriter(std::string& out, std::string_view prefix = "millrace:") : out_(out), prefix_(prefix) {}

  void describe(std::string_view name, std::string_view type, std::string_view help);
  template <class Number>
  void sample(std::string_view name, std::string_view labels, Number value) {
    const bool has_labels = !labels.empty();
    fmt::format_to(std::back_inserter(out_), "{}{}{}{}{} {}\n", prefix_, name, has_labels ? "{" : "", labels,
                   has_labels ? "}" : "", value);
  }
  /// Appends a family of one sample.
  template <class Number>
  void single(std::string_view name, std::string_view type, std::string_view help, Number value) {
    describe(name, type, help);
    sample(name, "", value);
  }
  /// Appends the samples of a histogram: `counts` has one more element than `bounds`, for what exceeds the last.
  template <class Bounds, class Sum>
  void histogram(std::string_view name, std::string_view labels, const Bounds& bounds, std::span<const uint64_t> counts,
                 Sum sum) {
    const std::string bucket = fmt::format("{}_bucket", name);
    const std::string_view comma = labels.empty() ? "" : ",";
    uint64_t below = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      below += counts[i];
      const std::string bound = i < bounds.size() ? fmt::format("{}", bounds[i]) : "+Inf";
      sample(bucket, fmt::format("{}{}le=\"{}\"", labels, comma, bound), below);
    }
    sample(fmt::format("{}_sum", name), labels, sum);
    sample(fmt::format("{}_count", name), labels, below);
  }

 private:
  std::string& out_;
  const std::string_view prefix_;
};

}  // namespace millrace::server
