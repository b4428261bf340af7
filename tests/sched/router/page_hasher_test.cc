#include "sched/router/page_hasher.h"

#include <catch2/catch.hpp>

using namespace millrace;
using namespace millrace::sched;

namespace {

std::vector<PageName> names_of(std::span<const TokenId> tokens, std::string_view salt = "") {
  PageHasher hasher(4, salt);
  std::vector<PageName> pages;
  hasher.append(tokens, pages);
  return pages;
}

}  // namespace

TEST_CASE("page names do not depend on how the tokens arrive") {
  const std::vector<TokenId> tokens = {5, 0, 7, 7, 1, 2, 3, 4, 9, 9};
  const std::vector<PageName> whole = names_of(tokens);
  REQUIRE(whole.size() == 2);
  for (size_t cut = 0; cut <= tokens.size(); ++cut) {
    PageHasher hasher(4, "");
    std::vector<PageName> pages;
    hasher.append(std::span(tokens).first(cut), pages);
    hasher.append(std::span(tokens).subspan(cut), pages);
    REQUIRE(pages == whole);
  }
}

TEST_CASE("a page name depends on salt and on all tokens before") {
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<PageName> names = names_of(tokens);
  REQUIRE(names_of(tokens, "tenant") != names);
  REQUIRE(names_of(tokens, "tenant")[0] != names[0]);
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::vector<TokenId> changed = tokens;
    ++changed[i];
    const std::vector<PageName> others = names_of(changed);
    REQUIRE((others[0] == names[0]) == (i >= 4));
    REQUIRE(others[1] != names[1]);
  }
  REQUIRE(names_of(std::vector<TokenId>{2, 1, 3, 4})[0] != names[0]);
  REQUIRE(names_of(std::vector<TokenId>{5, 6, 7, 8})[0] != names[1]);
}
