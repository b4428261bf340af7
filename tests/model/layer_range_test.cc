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

TEST_CASE("a partition by hand is used as written or refused") {
  REQUIRE(*parse_partition("15,15,15,16", 61, 4) == std::vector<LayerRange>{{0, 15}, {15, 30}, {30, 45}, {45, 61}});
  REQUIRE(*parse_partition("4", 4, 1) == std::vector<LayerRange>{{0, 4}});
  const auto message = [](std::string_view text) { return parse_partition(text, 8, 2).error().message; };
  REQUIRE_THAT(message("4,5"), Mentions("'4,5'", "9", "8"));
  REQUIRE_THAT(message("8"), Mentions("'8'", "1", "2"));
  REQUIRE_THAT(message("3,3,2"), Mentions("'3,3,2'", "2"));
  REQUIRE_THAT(message("8,0"), Mentions("'8,0'", "'0'", "1", "8"));
  REQUIRE_THAT(message("4,"), Mentions("'4,'", "''", "1", "8"));
  REQUIRE_THAT(message("4,4x"), Mentions("'4,4x'", "'4x'", "1", "8"));
  REQUIRE_THAT(message("9,-1"), Mentions("'9,-1'", "'9'", "1", "8"));
  REQUIRE_THAT(message("4,99999999999"), Mentions("'4,99999999999'", "'99999999999'", "1", "8"));
}

TEST_CASE("the spans of a division know the ends of the model") {
  const auto spans = stage_spans(*divide_layers(5, 3));
  REQUIRE(spans == std::vector<StageSpan>{{.layers = {0, 1}, .first = true, .last = false},
                                          {.layers = {1, 3}, .first = false, .last = false},
                                          {.layers = {3, 5}, .first = false, .last = true}});
  REQUIRE(stage_spans(*divide_layers(5, 1)) == std::vector<StageSpan>{{.layers = {0, 5}}});
}
