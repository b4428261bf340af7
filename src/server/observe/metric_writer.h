#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

namespace millrace::server {

[[nodiscard]] inline double seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

/// Appends families of the ring to a page of metrics in Prometheus' text form; their names begin with "millrace:".
class MetricWriter {
 public:
  explicit MetricWriter(std::string& out) : out_(out) {}

  void describe(std::string_view name, std::string_view type, std::string_view help) {
    fmt::format_to(std::back_inserter(out_), "# HELP millrace:{} {}\n# TYPE millrace:{} {}\n", name, help, name, type);
  }
  template <class Number>
  void sample(std::string_view name, std::string_view labels, Number value) {
    if (labels.empty()) {
      fmt::format_to(std::back_inserter(out_), "millrace:{} {}\n", name, value);
    } else {
      fmt::format_to(std::back_inserter(out_), "millrace:{}{{{}}} {}\n", name, labels, value);
    }
  }
  template <class Number>
  void single(std::string_view name, std::string_view type, std::string_view help, Number value) {
    describe(name, type, help);
    sample(name, "", value);
  }

 private:
  std::string& out_;
};

}  // namespace millrace::server
