#include "model/layer_balance.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "base/random.h"
#include "cpu/cpu_backend.h"
#include "model/families/read_config.h"
#include "model/part_estimate.h"
#include "model/part_timing.h"
#include "model/tensor_list.h"
#include "support/paths.h"

using namespace millrace;
using namespace millrace::model;

namespace {

struct Quality {
  double slowest = 0;
  double moved = 0;  // layers, squared, from the even division
};

/// Returns the quality of a division from the stages' costs, added up layer by layer.
Quality quality(const PartCosts& costs, const std::vector<LayerRange>& ranges) {
  Quality found;
  const auto even = *divide_layers(static_cast<int32_t>(costs.layers.size()), static_cast<int32_t>(ranges.size()));
  for (size_t stage = 0; stage < ranges.size(); ++stage) {
    double cost = stage == 0 ? costs.embedding : 0.0;
    for (int32_t layer = ranges[stage].begin; layer < ranges[stage].end; ++layer)
      cost += costs.layers[static_cast<size_t>(layer)];
    if (stage + 1 == ranges.size()) cost += costs.head;
    found.slowest = std::max(found.slowest, cost);
    const double moved = ranges[stage].size() - even[stage].size();
    found.moved += moved * moved;
  }
  return found;
}

/// Returns the quality of every division.
std::vector<Quality> qualities(const PartCosts& costs, std::vector<LayerRange> ranges, int32_t stage_count) {
  const auto layers = static_cast<int32_t>(costs.layers.size());
  const int32_t begin = ranges.empty() ? 0 : ranges.back().end;
  const auto left = stage_count - static_cast<int32_t>(ranges.size());
  if (left == 0) return {quality(costs, ranges)};
  std::vector<Quality> all;
  for (int32_t end = left == 1 ? layers : begin + 1; end <= layers - left + 1; ++end) {
    ranges.push_back({begin, end});
    for (const Quality& found : qualities(costs, ranges, stage_count)) all.push_back(found);
    ranges.pop_back();
  }
  return all;
}

/// Returns the minimum move among the divisions that are within `noise` of the fastest.
Quality nearest_of_fastest(const std::vector<Quality>& all, double noise) {
  Quality least{1e300, 1e300};
  for (const Quality& each : all) least.slowest = std::min(least.slowest, each.slowest);
  for (const Quality& each : all) {
    if (each.slowest <= least.slowest * (1 + noise + 1e-9)) least.moved = std::min(least.moved, each.moved);
  }
  return least;
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

TEST_CASE("a balanced partition is contiguous and optimal") {
  const double noise = GENERATE(0.0, 0.05);
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const auto layer_count = static_cast<size_t>(1 + uniform_at(seed, 5) * 11);
    const PartCosts costs = random_costs(seed, layer_count);
    for (int32_t stages = 1; stages <= static_cast<int32_t>(layer_count); ++stages) {
      const auto ranges = *balance_layers(costs, stages, noise);
      REQUIRE(ranges.size() == static_cast<size_t>(stages));
      REQUIRE(ranges.front().begin == 0);
      REQUIRE(ranges.back().end == static_cast<int32_t>(layer_count));
      for (size_t i = 0; i < ranges.size(); ++i) {
        REQUIRE(ranges[i].size() >= 1);
        if (i > 0) REQUIRE(ranges[i].begin == ranges[i - 1].end);
      }
      const Quality got = quality(costs, ranges);
      const Quality wanted = nearest_of_fastest(qualities(costs, {}, stages), noise);
      INFO("seed " << seed << ", " << layer_count << " layers, " << stages << " stages");
      REQUIRE(got.slowest <= wanted.slowest * (1 + noise + 1e-9));
      REQUIRE(got.moved == wanted.moved);
    }
  }
}

TEST_CASE("a costly head takes layers from the last stage") {
  const PartCosts costs{std::vector<double>(8, 1.0), 0.1, 4.0};
  REQUIRE(*balance_layers(costs, 2, 0) == std::vector<LayerRange>{{0, 6}, {6, 8}});
  REQUIRE(stage_costs(costs, {{0, 6}, {6, 8}}) == std::vector<double>{6.1, 6.0});
  REQUIRE(*balance_layers({std::vector<double>(8, 1.0), 0.0, 100.0}, 4, 0) ==
          std::vector<LayerRange>{{0, 2}, {2, 4}, {4, 7}, {7, 8}});
  REQUIRE(balance_layers(costs, 9, 0).error().message ==
          "9 pipeline stages for 8 layers, wanted at most one per layer");
}

TEST_CASE("a mix of work costs what its prompts and steps cost") {
  const WorkCosts work{.prefill = {{10, 20}, 1, 4}, .decode = {{1, 2}, 0.5, 6}};
  const PartCosts mixed = mixed_costs(work, 2);
  REQUIRE(mixed.layers == std::vector<double>{12, 24});
  REQUIRE(mixed.embedding == 2);
  REQUIRE(mixed.head == 16);
  REQUIRE(busy_shares(work.decode, {{0, 1}, {1, 2}}) == std::vector<double>{1.5 / 8, 1});
}

TEST_CASE("estimates weigh the head against layers as measured ones") {
  // Qwen2.5-0.5B: the output head weighs as much as nine layers.
  const auto config = parse_config(R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
      "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14, "num_key_value_heads": 2,
      "num_hidden_layers": 24, "vocab_size": 151936, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
      "max_position_embeddings": 32768, "tie_word_embeddings": true, "hidden_act": "silu",
      "torch_dtype": "bfloat16"})");
  REQUIRE(config.has_value());
  const ReferenceLoad load;
  const WorkCosts work = estimate_parts(*config, load);
  REQUIRE(work.decode.head / work.decode.layers[0] == Approx(9.1).margin(0.1));
  REQUIRE(work.prefill.head / work.prefill.layers[0] < 0.5);
  REQUIRE(balance_layers(work.decode, 2, 0.05)->front().size() == 16);
  REQUIRE(balance_layers(work.prefill, 2, 0.05)->front().size() == 12);
  const int32_t mixed = balance_layers(mixed_costs(work, load.steps_per_prompt()), 2, 0.05)->front().size();
  REQUIRE(mixed > 12);
  REQUIRE(mixed < 16);
}

TEST_CASE("estimates count the experts that the rows of a batch use") {
  const auto config = *read_config(test::source_dir() / "tests/golden/qwen3moe");
  const WorkCosts one = estimate_parts(config, {.prompt_tokens = 4096, .decode_rows = 1});
  const WorkCosts many = estimate_parts(config, {.prompt_tokens = 4096, .decode_rows = 64});
  size_t sparse = 0;
  for (size_t i = 0; i < one.decode.layers.size(); ++i) {
    REQUIRE(many.decode.layers[i] > one.decode.layers[i]);
    if (!config.is_sparse(static_cast<int32_t>(i))) continue;
    ++sparse;
    const double all = static_cast<double>(parameter_count(
        config, {.layers = {static_cast<int32_t>(i), static_cast<int32_t>(i) + 1}, .first = false, .last = false}));
    REQUIRE(one.decode.layers[i] < 8 * all);  // not all are read
    REQUIRE(one.prefill.layers[i] < 4096 * all);
  }
  REQUIRE(sparse > 0);
}

TEST_CASE("near ties give the same partition for new costs") {
  const std::vector<LayerRange> nearer{{0, 5}, {5, 8}};
  int changes = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const double head = 3.0 + 0.1 * (2 * uniform_at(seed, 0) - 1);  // 5,3 and 6,2 are tied at 3
    const PartCosts costs{std::vector<double>(8, 1.0), 0.0, head};
    REQUIRE(*balance_layers(costs, 2, 0.05) == nearer);
    changes += *balance_layers(costs, 2, 0) != nearer;
  }
  REQUIRE(changes > 50);
  REQUIRE(*balance_layers({std::vector<double>(8, 1.0), 0.0, 3.5}, 2, 0.05) == std::vector<LayerRange>{{0, 6}, {6, 8}});
}

TEST_CASE("timing a model can be ended between tensors and runs") {
  const auto folder = test::source_dir() / "tests/golden/llama-tied";
  const auto config = *read_config(folder);
  const auto checkpoint = *Checkpoint::open(folder);
  const auto backend = cpu::make_backend({.threads = 1});
  const ReferenceLoad load{.prompt_tokens = 8, .decode_rows = 2};
  for (const size_t end_at : {size_t{1}, size_t{2}, size_t{20}, size_t{60}}) {
    size_t count = 0;
    const auto between = [&] {
      if (++count == end_at) throw std::runtime_error("that will do");
    };
    REQUIRE_THROWS_WITH(time_parts(*checkpoint, config, *backend, load, between), "that will do");
    REQUIRE(count == end_at);
  }
}

TEST_CASE("every part is timed and equal layers cost the same") {
  const auto folder = test::source_dir() / "tests/golden" / GENERATE("mistral", "qwen2", "llama-tied", "qwen3moe");
  const auto config = *read_config(folder);
  const auto checkpoint = *Checkpoint::open(folder);
  const auto backend = cpu::make_backend({.threads = 1});
  const WorkCosts work = *time_parts(*checkpoint, config, *backend, {.prompt_tokens = 70, .decode_rows = 3});
  const PartCosts& costs = GENERATE(true, false) ? work.prefill : work.decode;
  REQUIRE(costs.embedding > 0);
  REQUIRE(costs.head > 0);
  REQUIRE(costs.layers.size() == static_cast<size_t>(config.layer_count()));
  for (size_t i = 0; i < costs.layers.size(); ++i) {
    REQUIRE(costs.layers[i] > 0);
    for (size_t j = 0; j < i; ++j) {
      const bool alike = config.is_sparse(static_cast<int32_t>(i)) == config.is_sparse(static_cast<int32_t>(j));
      if (alike && config.layers[i] == config.layers[j]) REQUIRE(costs.layers[i] == costs.layers[j]);
    }
  }
}
