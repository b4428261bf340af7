#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/random.h"
#include "fuzz/targets.h"
#include "support/effort.h"
#include "support/paths.h"
#include "text/tool_calls/tool_formats.h"

using namespace millrace;

namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(seed) {}
  size_t below(size_t bound) { return static_cast<size_t>(uniform_at(seed_, draws_++) * static_cast<double>(bound)); }

 private:
  uint64_t seed_;
  uint64_t draws_ = 0;
};

std::vector<std::string> read_corpus(std::string_view name) {
  const auto folder = test::source_dir() / "tests/fuzz/corpus" / name;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::ranges::sort(paths);
  std::vector<std::string> seeds;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return seeds;
}

constexpr std::array<std::string_view, 24> kPieces = {
    "null", "true",    "-1",          "0",        "1e999", "4294967296", "18446744073709551615",
    "\"",   "\\ud800", "\\",          "{",        "}",     "[[[[[[",     "]",
    ",",    ":",       "\r\n",        "\r\n\r\n", "{{",    "{%",         "%}",
    "\xFF", "\xC3",    "\xEF\xBF\xBD"};

void mutate(std::string& input, const std::string& other, Dice& dice) {
  const size_t at = dice.below(input.size() + 1);
  switch (dice.below(6)) {
    case 0:
      if (at < input.size()) input[at] = static_cast<char>(dice.below(256));
      break;
    case 1: input.erase(at, dice.below(16)); break;
    case 2: input.insert(at, kPieces[dice.below(kPieces.size())]); break;
    case 3: input.insert(at, input.substr(dice.below(input.size() + 1), dice.below(64))); break;
    case 4: input.replace(at, dice.below(8), kPieces[dice.below(kPieces.size())]); break;
    default: input = input.substr(0, at) + other.substr(dice.below(other.size() + 1)); break;
  }
}

}  // namespace

TEST_CASE("every fuzz target holds over its seeds and their mutations") {
  for (const fuzz::Target& target : fuzz::kTargets) {
    const auto seeds = read_corpus(target.name);
    INFO(target.name);
    REQUIRE(seeds.size() >= 3);
    for (const std::string& seed : seeds) target.run(seed);
    for (uint64_t round = 0; round < test::repetitions(2000); ++round) {
      Dice dice(round);
      std::string input = seeds[dice.below(seeds.size())];
      for (size_t i = dice.below(6); i < 6; ++i) mutate(input, seeds[dice.below(seeds.size())], dice);
      target.run(input);
    }
  }
}

TEST_CASE("outputs in each format of calls are fuzzed") {
  const auto seeds = read_corpus("model_output");
  for (size_t i = 0; i < text::kToolFormatCount; ++i) {
    const std::string name(text::to_string(static_cast<text::ToolFormat>(i)));
    INFO(name);
    CHECK(std::ranges::any_of(seeds, [&](const std::string& seed) { return seed.starts_with(name + " "); }));
  }
}
