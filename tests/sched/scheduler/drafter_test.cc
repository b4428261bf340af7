#include "sched/scheduler/drafter.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "base/random.h"

#include "base/random.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

std::vector<TokenId> tokens_of(const std::vector<Draft>& drafts) {
  std::vector<TokenId> tokens;
  for (const Draft& draft : drafts) tokens.push_back(draft.token);
  return tokens;
}

/// Returns the drafts after `tokens` that came one by one after the first `prompt` of them.
std::vector<TokenId> behind(const std::vector<TokenId>& tokens, uint32_t prompt, std::vector<TokenId> prediction,
                            size_t most = 4) {
  Drafter drafter(prompt, std::move(prediction), true);
  std::vector<Draft> drafts;
  for (size_t length = prompt; length <= tokens.size(); ++length)
    drafts = drafter.propose(std::span(tokens).first(length), most);
  return tokens_of(drafts);
}

std::vector<TokenId> counted(TokenId from, size_t count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

}  // namespace

TEST_CASE("what stood behind the same three tokens is expected again") {
  REQUIRE(behind({1, 2, 3, 4, 5, 6, 9, 1, 2, 3}, 5, {}) == std::vector<TokenId>{4, 5, 6, 9});
  REQUIRE(behind({1, 2, 3, 4, 5, 6, 9, 1, 2, 3}, 5, {}, 2) == std::vector<TokenId>{4, 5});
  REQUIRE(behind({1, 2, 3, 4, 9, 2, 3}, 5, {}).empty());
  REQUIRE(behind({1, 2}, 1, {}).empty());
  SECTION("the last time counts") {
    REQUIRE(behind({1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 1, 2, 3}, 1, {}, 1) == std::vector<TokenId>{5});
  }
  SECTION("but a text that goes on is followed") {
    // 7 8 9 was followed by 1 2 3 4, and the last 1 2 3 by 5.
    REQUIRE(behind({7, 8, 9, 1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 7, 8, 9, 1, 2, 3}, 1, {}, 1) == std::vector<TokenId>{4});
  }
  SECTION("what repeats itself goes on so") {
    REQUIRE(behind({5, 6, 5, 6, 5}, 1, {}) == std::vector<TokenId>{6, 5, 6, 5});
    REQUIRE(behind({4, 4, 4, 4}, 1, {}) == std::vector<TokenId>{4, 4, 4, 4});
  }
}

TEST_CASE("an output follows its prediction past differing tokens") {
  const std::vector<TokenId> prediction = counted(100, 20);
  REQUIRE(behind({1, 2}, 2, prediction) == std::vector<TokenId>{100, 101, 102, 103});
  REQUIRE(behind({1, 2, 100, 101}, 2, prediction) == std::vector<TokenId>{102, 103, 104, 105});
  REQUIRE(behind({1, 2, 100, 50}, 2, prediction) == std::vector<TokenId>{102, 103, 104, 105});
  REQUIRE(behind({1, 2, 100, 50, 102}, 2, prediction) == std::vector<TokenId>{103, 104, 105, 106});
  REQUIRE(behind({1, 2, 100, 50, 51}, 2, prediction).empty());
  REQUIRE(behind({1, 2, 100, 50, 51, 105, 106}, 2, prediction).empty());
  REQUIRE(behind({1, 2, 100, 50, 51, 105, 106, 107}, 2, prediction) == std::vector<TokenId>{108, 109, 110, 111});
  REQUIRE(behind({1, 2, 117, 118, 119}, 2, prediction).empty());
  SECTION("the prompt is no part of the answer") {
    REQUIRE(behind({103, 104, 105, 1}, 4, prediction) == std::vector<TokenId>{100, 101, 102, 103});
    REQUIRE(behind({103, 104, 105, 50, 51}, 3, prediction).empty());
  }
  SECTION("of several places the next one that has not come yet") {
    std::vector<TokenId> twice = {7, 8, 9, 1, 7, 8, 9, 2, 7, 8, 9, 3};
    REQUIRE(behind({0, 7, 8, 9, 1, 7, 8, 9, 2}, 1, twice, 1) == std::vector<TokenId>{7});
    REQUIRE(behind({0, 50, 51, 7, 8, 9}, 1, twice, 1) == std::vector<TokenId>{2});
  }
  SECTION("nothing is looked for too far away") {
    std::vector<TokenId> far = counted(1000, 9000);
    far.insert(far.end(), {7, 8, 9, 2});
    REQUIRE(behind({0, 50, 51, 7, 8, 9}, 1, far, 1).empty());
    far.erase(far.begin(), far.begin() + 2000);
    REQUIRE(behind({0, 50, 51, 7, 8, 9}, 1, far, 1) == std::vector<TokenId>{2});
  }
  SECTION("it goes before the history") {
    REQUIRE(behind({1, 2, 3, 4, 1, 2, 3}, 7, {9, 8}) == std::vector<TokenId>{9, 8});
    REQUIRE(behind({1, 2, 3, 4, 1, 2, 3}, 1, {9, 8}) == std::vector<TokenId>{4, 1, 2, 3});
  }
}

TEST_CASE("without history nothing is expected but the prediction") {
  Drafter drafter(1, {}, false);
  const std::vector<TokenId> tokens = {4, 4, 4, 4, 4};
  REQUIRE(drafter.propose(tokens, 4).empty());
}

TEST_CASE("a long prompt is read in parts before it yields drafts") {
  std::vector<TokenId> tokens = counted(0, 200'000);
  tokens.insert(tokens.end(), {1000, 1001, 1002});
  Drafter drafter(200'003, {}, true);
  int calls = 1;
  for (; drafter.propose(tokens, 2).empty(); ++calls) REQUIRE(calls < 10);
  REQUIRE(calls == 4);
  REQUIRE(tokens_of(drafter.propose(tokens, 2)) == std::vector<TokenId>{1003, 1004});
}

TEST_CASE("the last place is found again whatever the hashes") {
  for (uint64_t round = 0; round < 30; ++round) {
    const double kinds = 2 + static_cast<double>(round % 12);
    std::vector<TokenId> tokens;
    Drafter drafter(0, {}, true);
    for (size_t length = 0; length < 600; ++length) {
      tokens.push_back(static_cast<TokenId>(uniform_at(round, length) * kinds));
      for (const Draft& draft : drafter.propose(tokens, 1)) {
        // Each draft has followed these three tokens before.
        bool found = false;
        for (size_t at = 3; at < tokens.size() && !found; ++at) {
          found = tokens[at] == draft.token &&
                  std::equal(tokens.end() - 3, tokens.end(), tokens.begin() + static_cast<std::ptrdiff_t>(at) - 3);
        }
        REQUIRE((found || std::equal(tokens.end() - 3, tokens.end(), tokens.end() - 4)));
      }
    }
  }
}

TEST_CASE("acceptance follows outcomes and returns while unused") {
  Drafter drafter(0, {}, true);
  const double prior = drafter.acceptance(DraftSource::kHistory);
  const std::vector<Draft> drafts(3, Draft{1, DraftSource::kHistory, nullptr});
  drafter.record_outcome(drafts, 3);
  const double right = drafter.acceptance(DraftSource::kHistory);
  REQUIRE(right > prior);
  REQUIRE(drafter.acceptance(DraftSource::kPrediction) != right);
  for (int i = 0; i < 50; ++i) drafter.record_outcome(drafts, 0);
  REQUIRE(drafter.acceptance(DraftSource::kHistory) < 0.01);
  for (int i = 0; i < 1000; ++i) drafter.skip(DraftSource::kHistory);
  REQUIRE(drafter.acceptance(DraftSource::kHistory) == Approx(prior).margin(0.01));
  for (int i = 0; i < 1000; ++i) drafter.record_outcome(drafts, 3);
  REQUIRE(drafter.acceptance(DraftSource::kHistory) > 0.99);
  REQUIRE(drafter.acceptance(DraftSource::kHistory) <= 1);
}
