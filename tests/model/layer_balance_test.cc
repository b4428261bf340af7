#include "model/layer_balance.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "base/random.h"
#include "cpu/cpu_backend.h"
#include "model/part_timing.h"
#include "support/paths.h"

using namespace millrace;
using namespace millrace::model;

namespace {

struct Quality {
  double slowest = 0;
  double squares = 0;
};

/// Of the stages' costs, added up layer by layer.
Quality quality(const PartCosts& costs, const std::vector<LayerRange>& ranges) {
  Quality found;
  for (size_t stage = 0; stage < ranges.size(); ++stage) {
    double cost = stage == 0 ? costs.embedding : 0.0;
    for (int32_t layer = ranges[stage].begin; layer < ranges[stage].end; ++layer)
      cost += costs.layers[static_cast<size_t>(layer)];
    if (stage + 1 == ranges.size()) cost += costs.head;
    found.slowest = std::max(found.slowest, cost);
    found.squares += cost * cost;
  }
  return found;
}

bool better(const Quality& a, const Quality& b) {
  if (std::abs(a.slowest - b.slowest) > 1e-9 * b.slowest) return a.slowest < b.slowest;
  return a.squares < b.squares;
}

/// The best of all divisions that begin with `ranges`, by trying each.
Quality best_division(const PartCosts& costs, std::vector<LayerRange> ranges, int32_t stage_count) {
  const auto layers = static_cast<int32_t>(costs.layers.size());
  const int32_t begin = ranges.empty() ? 0 : ranges.back().end;
  const auto left = stage_count - static_cast<int32_t>(ranges.size());
  if (left == 0) return quality(costs, ranges);
  Quality best{1e300, 1e300};
  for (int32_t end = left == 1 ? layers : begin + 1; end <= layers - left + 1; ++end) {
    ranges.push_back({begin, end});
    const Quality found = best_division(costs, ranges, stage_count);
    if (better(found, best)) best = found;
    ranges.pop_back();
  }
  return best;
}

PartCosts random_costs(uint64_t seed, size_t layer_count) {
  const auto dice = [seed](uint64_t draw) { return uniform_at(seed, draw); };
  PartCosts costs;
  const bool equal = dice(0) < 0.5;
  for (size_t i = 0; i < layer_count; ++i) costs.layers.push_back(equal ? 1.0 : 0.1 + dice(10 + i));
  costs.embedding = dice(1);
  costs.head = 8 * dice(2) * dice(3);
  return costs;
}

}  // namespace

TEST_CASE("a balanced division is contiguous, and no other one is better") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const auto layer_count = static_cast<size_t>(1 + uniform_at(seed, 5) * 11);
    const PartCosts costs = random_costs(seed, layer_count);
    for (int32_t stages = 1; stages <= static_cast<int32_t>(layer_count); ++stages) {
      const auto ranges = *balance_layers(costs, stages);
      REQUIRE(ranges.size() == static_cast<size_t>(stages));
      REQUIRE(ranges.front().begin == 0);
      REQUIRE(ranges.back().end == static_cast<int32_t>(layer_count));
      for (size_t i = 0; i < ranges.size(); ++i) {
        REQUIRE(ranges[i].size() >= 1);
        if (i > 0) REQUIRE(ranges[i].begin == ranges[i - 1].end);
      }
      const Quality got = quality(costs, ranges);
      const Quality wanted = best_division(costs, {}, stages);
      INFO("seed " << seed << ", " << layer_count << " layers, " << stages << " stages");
      REQUIRE(got.slowest == Approx(wanted.slowest).epsilon(1e-9));
      REQUIRE(got.squares == Approx(wanted.squares).epsilon(1e-9));
    }
  }
}

TEST_CASE("a costly head takes layers from the last stage") {
  const PartCosts costs{std::vector<double>(8, 1.0), 0.1, 4.0};
  REQUIRE(*balance_layers(costs, 2) == std::vector<LayerRange>{{0, 6}, {6, 8}});
  REQUIRE(stage_costs(costs, {{0, 6}, {6, 8}}) == std::vector<double>{6.1, 6.0});
  REQUIRE(*balance_layers({std::vector<double>(8, 1.0), 0.0, 100.0}, 4) ==
          std::vector<LayerRange>{{0, 2}, {2, 4}, {4, 7}, {7, 8}});
  REQUIRE(balance_layers(costs, 9).error().message == "9 pipeline stages for 8 layers, wanted at most one per layer");
}

TEST_CASE("every part of a model is timed, and layers of one kind cost the same") {
  const auto folder = test::source_dir() / "tests/golden" / GENERATE("mistral", "qwen2", "llama-tied");
  const auto config = *read_config(folder);
  const auto checkpoint = *Checkpoint::open(folder);
  const auto backend = cpu::make_backend({.threads = 1});
  const PartCosts costs = *time_parts(*checkpoint, config, *backend, {.prompt_tokens = 70, .decode_rows = 3});
  REQUIRE(costs.embedding > 0);
  REQUIRE(costs.head > 0);
  REQUIRE(costs.layers.size() == static_cast<size_t>(config.layer_count));
  for (size_t i = 0; i < costs.layers.size(); ++i) {
    REQUIRE(costs.layers[i] > 0);
    for (size_t j = 0; j < i; ++j)
      if (config.sliding_windows[i] == config.sliding_windows[j]) REQUIRE(costs.layers[i] == costs.layers[j]);
  }
}
