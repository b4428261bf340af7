#include "sched/scheduler/least_squares.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "base/random.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

using Fit = NonNegativeLeastSquares<5>;

/// Samples, with noise, of a truth in which some terms are 0 or negative. Their units differ like those of costs.
class Samples {
 public:
  explicit Samples(uint64_t seed) : seed_(seed) {
    for (double& term : truth_) term = draw() < 0.4 ? -0.3 * draw() : draw();
  }
  double draw() { return uniform_at(seed_, draws_++); }
  void add_to(Fit& fit) {
    constexpr Fit::Vector kUnits = {1, 1e3, 1e6, 10, 1e4};
    Fit::Vector terms{};
    double target = 0;
    for (size_t i = 0; i < terms.size(); ++i) {
      if (draw() < 0.3) continue;
      terms[i] = kUnits[i] * draw();
      target += truth_[i] * terms[i] / kUnits[i];
    }
    target = std::max(0.01, target + 0.2 * (draw() - 0.5));
    fit.add(terms, target, 1 / (target * target));
  }

 private:
  uint64_t seed_;
  uint64_t draws_ = 0;
  Fit::Vector truth_{};
};

}  // namespace

TEST_CASE("a near solution does not change a least-squares fit") {
  int zeros = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Samples samples(seed);
    Fit fit;
    Fit::Vector near{};
    for (int i = 0; i < 60; ++i) {
      samples.add_to(fit);
      const Fit::Vector solution = fit.solve();
      REQUIRE(fit.solve(near) == solution);
      Fit::Vector elsewhere{};
      for (double& term : elsewhere) term = samples.draw() < 0.5 ? 0 : 1;
      REQUIRE(fit.solve(elsewhere) == solution);
      near = solution;
      if (i == 30) {
        Fit decayed;
        decayed.add(fit, 0.1);
        fit = decayed;
      }
    }
    zeros += static_cast<int>(std::ranges::count(near, 0.0));
  }
  REQUIRE(zeros > 200);
}

TEST_CASE("a least-squares fit of nothing or of zeros is 0") {
  REQUIRE(Fit().solve() == Fit::Vector{});
  Fit fit;
  fit.add({1, 1, 1, 1, 1}, 0, 1);
  REQUIRE(fit.solve({1, 1, 1, 1, 1}) == Fit::Vector{});
}
