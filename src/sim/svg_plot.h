#pragma once

#include <string>
#include <vector>

namespace millrace::sim {

struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< in order of x
};

/// Returns a line chart as an SVG document. x values are placed as categories, in order; y starts at 0.
[[nodiscard]] std::string plot_svg(const std::string& title, const std::string& x_label, const std::string& y_label,
                                   const std::vector<PlotSeries>& series);

}  // namespace millrace::sim
