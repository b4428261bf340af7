#include "sim/svg_plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

namespace millrace::sim {
namespace {

constexpr double kWidth = 760;
constexpr double kHeight = 420;
constexpr double kLeft = 70;
constexpr double kRight = 200;
constexpr double kTop = 50;
constexpr double kBottom = 60;
constexpr std::array<const char*, 8> kColours = {"#0b6e99", "#d1495b", "#3a7d44", "#e09f3e",
                                                 "#6a4c93", "#555555", "#00a6a6", "#9c6644"};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else if (static_cast<unsigned char>(c) >= ' ')
      out += c;  // XML cannot represent the others
  }
  return out;
}

std::string text_at(double x, double y, const std::string& anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, escaped(text));
}

/// Returns the smallest of 1, 2, 5 times a power of ten that is not below `value`.
double round_up(double value) {
  if (value <= 0) return 1;
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (step * power >= value) return step * power;
  }
  return 10 * power;
}

class Axes {
 public:
  explicit Axes(const std::vector<PlotSeries>& series) {
    std::set<double> values;
    for (const PlotSeries& one : series) {
      for (const auto& [x, y] : one.points) {
        values.insert(x);
        highest_ = std::max(highest_, y);
      }
    }
    categories_.assign(values.begin(), values.end());
    tick_ = round_up(highest_ / 5);
    highest_ = std::max(tick_, std::ceil(highest_ / tick_) * tick_);
  }
  [[nodiscard]] double x(double value) const {
    const auto place = std::ranges::lower_bound(categories_, value) - categories_.begin();
    return kLeft + (static_cast<double>(place) + 0.5) * (kWidth - kLeft - kRight) /
                       static_cast<double>(std::max<size_t>(1, categories_.size()));
  }
  [[nodiscard]] double y(double value) const {
    return kHeight - kBottom - value / highest_ * (kHeight - kTop - kBottom);
  }
  [[nodiscard]] std::string draw() const {
    std::string out;
    for (double value = 0; value <= highest_ * 1.001; value += tick_) {
      out += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n", kLeft,
                         kWidth - kRight, y(value), y(value));
      out += text_at(kLeft - 8, y(value) + 4, "end", fmt::format("{:g}", value));
    }
    for (const double value : categories_) {
      out += text_at(x(value), kHeight - kBottom + 20, "middle", fmt::format("{:g}", value));
    }
    return out;
  }

 private:
  std::vector<double> categories_;
  double highest_ = 0;
  double tick_ = 1;
};

}  // namespace

std::string plot_svg(const std::string& title, const std::string& x_label, const std::string& y_label,
                     const std::vector<PlotSeries>& series) {
  const Axes axes(series);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kWidth, kHeight);
  out += text_at(kLeft, 28, "start", title);
  out += axes.draw();
  out += text_at((kLeft + kWidth - kRight) / 2, kHeight - 16, "middle", x_label);
  out += text_at(kLeft, kTop - 6, "end", y_label);
  for (size_t i = 0; i < series.size(); ++i) {
    const char* colour = kColours[i % kColours.size()];
    std::string points;
    for (const auto& [x, y] : series[i].points) points += fmt::format("{:.1f},{:.1f} ", axes.x(x), axes.y(y));
    out += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", points, colour);
    for (const auto& [x, y] : series[i].points) {
      out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", axes.x(x), axes.y(y), colour);
    }
    const double at = kTop + 18 * static_cast<double>(i);
    out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"4\" fill=\"{}\"/>\n", kWidth - kRight + 14,
                       at - 6, colour);
    out += text_at(kWidth - kRight + 32, at, "start", series[i].name);
  }
  return out + "</svg>\n";
}

}  // namespace millrace::sim
