#include "model/layer_range.h"
#include "support/mentions.h"

#include <catch2/catch.hpp>
#include <climits>

using namespace millrace;
using namespace millrace::model;
using millrace::test::Mentions;

TEST_CASE("layers divide evenly with the rest on the later stages") {
  REQUIRE(*divide_layers(22, 4) == std::vector<LayerRange>{{0, 5}, {5, 10}, {10, 16}, {16, 22}});
  REQUIRE(*divide_layers(8, 1) == std::vector<LayerRange>{{0, 8}});
  REQUIRE(*divide_layers(3, 3) == std::vector<LayerRange>{{0, 1}, {1, 2}, {2, 3}});
  for (int32_t layers = 1; layers <= 40; ++layers)
    for (int32_t stages = 1; stages <= layers; ++stages) {
      const auto ranges = *divide_layers(layers, stages);
      REQUIRE(ranges.size() == static_cast<size_t>(stages));
      REQUIRE(ranges.front().begin == 0);
      REQUIRE(ranges.back().end == layers);
      for (size_t i = 1; i < ranges.size(); ++i) {
        REQUIRE(ranges[i].begin == ranges[i - 1].end);
        REQUIRE(ranges[i].size() >= ranges[i - 1].size());
      }
      REQUIRE(ranges.back().size() - ranges.front().size() <= 1);
    }
}

TEST_CASE("zero stages and more stages than layers are refused") {
  REQUIRE_THAT(divide_layers(3, 4).error().message, Mentions("4 pipeline stages", "3 layers"));
  REQUIRE(divide_layers(3, 0).error().message == "0 pipeline stages, wanted at least 1");
}

TEST_CASE("a partition by hand is taken as written or refused") {
  const auto divide = [](std::string_view text, int32_t layer_count, int32_t stage_count) {
    const auto partition = parse_layer_partition(text);
    REQUIRE(partition->rule == LayerPartition::Rule::kByHand);
    REQUIRE(to_string(*partition) == text);
    return divide_by_hand(partition->sizes, layer_count, stage_count);
  };
  REQUIRE(*divide("15,15,15,16", 61, 4) == std::vector<LayerRange>{{0, 15}, {15, 30}, {30, 45}, {45, 61}});
  REQUIRE(*divide("4", 4, 1) == std::vector<LayerRange>{{0, 4}});
  const auto message = [&](std::string_view text) { return divide(text, 8, 2).error().message; };
  REQUIRE(message("4,5") == "layer partition '4,5' sums to 9, the model has 8 layers");
  REQUIRE(message("8") == "layer partition '8' has 1 parts, wanted 2, one per stage");
  REQUIRE(message("3,3,2") == "layer partition '3,3,2' has 3 parts, wanted 2, one per stage");
  REQUIRE(message("2147483647,9") == "layer partition '2147483647,9' sums to 2147483656, the model has 8 layers");
}

TEST_CASE("a partition is even or auto or positive numbers") {
  for (const std::string_view text : {"even", "auto", "auto:prefill", "auto:decode"}) {
    REQUIRE(to_string(*parse_layer_partition(text)) == text);
  }
  REQUIRE(parse_layer_partition("auto:decode")->load == LayerPartition::Load::kDecode);
  struct Sample {
    std::string_view text;
    std::string_view part;
  };
  for (const Sample& sample : {Sample{"8,0", "'0'"}, Sample{"4,", "''"}, Sample{"4,4x", "'4x'"}, Sample{"-1,9", "'-1'"},
                               Sample{"4,99999999999", "'99999999999'"}, Sample{"", "''"}, Sample{"auto:", "'auto:'"},
                               Sample{"auto:decode,4", "'auto:decode'"}}) {
    const auto partition = parse_layer_partition(sample.text);
    REQUIRE(partition.error().code == ErrorCode::kInvalidArgument);
    REQUIRE_THAT(partition.error().message, Catch::Contains(std::string(sample.part) + " is no number of layers"));
  }
}

TEST_CASE("the spans of a division know the ends of the model") {
  const auto spans = stage_spans(*divide_layers(5, 3));
  REQUIRE(spans == std::vector<StageSpan>{{.layers = {0, 1}, .first = true, .last = false},
                                          {.layers = {1, 3}, .first = false, .last = false},
                                          {.layers = {3, 5}, .first = false, .last = true}});
  REQUIRE(stage_spans(*divide_layers(5, 1)) == std::vector<StageSpan>{{.layers = {0, 5}}});
}
