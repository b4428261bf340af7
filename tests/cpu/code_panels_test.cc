// The bits that weights in codes take in panels.

#include <catch2/catch.hpp>
#include <string_view>

#include "conformance/random_codes.h"
#include "cpu/code_panel_layout.h"

using namespace millrace;
using test::CodeLayout;

namespace {

CodeLayout layout_named(std::string_view name) {
  for (const CodeLayout& each : test::kCodeLayouts)
    if (each.name == name) return each;
  for (const CodeLayout& each : test::kByteKinds)
    if (each.name == name) return each;
  FAIL(name);
  return {};
}

tensor::CodeStorage codes_of(std::string_view name, int64_t cols) {
  test::Random random(1);
  return test::random_codes(random, 64, cols, layout_named(name));
}

}  // namespace

TEST_CASE("panels of codes take the bits of their integers") {
  struct Case {
    std::string_view name;
    int bits;
    double bits_per_weight;  // with scales, offsets and factors
  };
  constexpr int64_t kCols = 2048;
  for (const Case& expected :
       {Case{"w4", 4, 4.5}, Case{"q4_k", 4, 4.625}, Case{"q5_0", 5, 5.5}, Case{"q5_1", 5, 6.0}, Case{"q5_k", 5, 5.625},
        Case{"q6_k", 6, 6.5625}, Case{"q3_k", 3, 3.5625}, Case{"q2_k", 2, 3.125}, Case{"w6a16 of 128", 6, 6.125},
        Case{"w6a16 with zero points", 6, 7.25}, Case{"q8_0", 8, 8.5}, Case{"gptq of 8 bits", 8, 8.1875}}) {
    INFO(expected.name);
    const tensor::CodeStorage storage = codes_of(expected.name, kCols);
    const tensor::CodeMatrix matrix = storage.view();
    const cpu::PanelLayout layout = cpu::code_panel_layout({&matrix, 1}, cpu::whole_panel_shard(kCols), false);
    REQUIRE(layout.codes.bits == expected.bits);
    REQUIRE(static_cast<double>(layout.bytes) * 8 / (64 * kCols) == expected.bits_per_weight);
  }
}

TEST_CASE("a panel of two kinds takes the bits that hold both") {
  struct Case {
    std::string_view left;
    std::string_view right;
    int bits;
  };
  constexpr int64_t kCols = 512;
  for (const Case& expected :
       {Case{"q4_k", "q4_1", 4}, Case{"w4", "q4_k", 5}, Case{"q4_k", "q5_k", 5}, Case{"q5_0", "q5_k", 6},
        Case{"q4_k", "q6_k", 6}, Case{"q2_k", "q3_k", 3}, Case{"q3_k", "q4_k", 6}, Case{"q6_k", "q5_k", 6},
        Case{"q5_0", "q6_k", 6}, Case{"iq4_xs", "q6_k", 8}, Case{"q6_k", "q8_0", 8}, Case{"gptq", "w6a16 of 128", 6},
        Case{"gptq of 8 bits", "w6a16 of 128", 8}}) {
    INFO(expected.left << " and " << expected.right);
    const tensor::CodeStorage left = codes_of(expected.left, kCols);
    const tensor::CodeStorage right = codes_of(expected.right, kCols);
    const tensor::CodeMatrix parts[] = {left.view(), right.view()};
    const cpu::PanelLayout layout = cpu::code_panel_layout(parts, cpu::whole_panel_shard(kCols), true);
    REQUIRE(layout.codes.bits == expected.bits);
  }
}

TEST_CASE("panels are shared by matrices of as many bits") {
  const auto shares = [](std::string_view left, std::string_view right) {
    return cpu::share_code_panels(codes_of(left, 512).view(), codes_of(right, 512).view());
  };
  REQUIRE(shares("w6a16 of 128", "w6a16 with zero points"));
  REQUIRE(shares("q5_1", "q5_k"));
  REQUIRE_FALSE(shares("q5_0", "w6a16 of 128"));
  REQUIRE_FALSE(shares("w6a16 of 128", "q8_0"));
  REQUIRE_FALSE(shares("q6_k", "w6a16 of 128"));
}
