#include "cache/page_key.h"

#include <catch2/catch.hpp>
#include <vector>

using namespace millrace;
using namespace millrace::cache;

TEST_CASE("keys are chained SHA-256 over salt and tokens forever") {
  REQUIRE(root_key("").hex() == "d7bf3352d4904703c1df21be6ec9535ba4f807c8bcffb9322d0ce50b20d244b5");
  REQUIRE(root_key("tenant").hex() == "1c294b8818adbd075a5e96fd06c395d4e530224760f0430c780e3bd7689c1003");
  const std::vector<TokenId> first{1, 2, 3, -1};
  const std::vector<TokenId> second{70000, 5, 6, 7};
  const PageKey key = child_key(root_key(""), first);
  REQUIRE(key.hex() == "e3074d525f044e6fa17316e59204c6d64cb898109898ef9d9c59b45ef5d5214c");
  REQUIRE(child_key(key, second).hex() == "9c634204d7a0a8fc2d8f315866e9f2332ccaf745ce122545d441aa8b14fcea13");
  REQUIRE(child_key(root_key("tenant"), first) != key);
  REQUIRE(child_key(root_key(""), second) != child_key(key, second));
}
