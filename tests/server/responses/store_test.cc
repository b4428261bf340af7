#include "server/responses/store.h"

#include <catch2/catch.hpp>

using namespace millrace::server::responses;

namespace {

StoredResponse response(const std::string& id, size_t bytes = 100) {
  return {.id = id,
          .object = std::string(bytes, 'x'),
          .input = {{make_item_id("msg", id, 7), "in"}},
          .output = {{make_item_id("msg", id, 0), "out"}},
          .events = {}};
}

}  // namespace

TEST_CASE("The store gives a response back until it is erased") {
  ResponseStore store(1 << 20);
  store.put(response("resp_a"));
  REQUIRE(store.find("resp_a") != nullptr);
  CHECK(store.find("resp_a")->output.front().json == "out");
  CHECK(store.find("resp_b") == nullptr);
  CHECK(store.erase("resp_a"));
  CHECK_FALSE(store.erase("resp_a"));
  CHECK(store.find("resp_a") == nullptr);
  CHECK(store.used_bytes() == 0);
}

TEST_CASE("The response that was used longest ago goes first") {
  const size_t bytes = response("resp_a").bytes();
  ResponseStore store(3 * bytes);
  for (const char* id : {"resp_a", "resp_b", "resp_c"}) store.put(response(id));
  REQUIRE(store.find("resp_a") != nullptr);
  store.put(response("resp_d"));
  CHECK(store.find("resp_b") == nullptr);
  for (const char* id : {"resp_a", "resp_c", "resp_d"}) CHECK(store.find(id) != nullptr);
  CHECK(store.used_bytes() == 3 * bytes);
}

TEST_CASE("A response larger than the store is not kept") {
  ResponseStore store(2000);
  store.put(response("resp_a"));
  store.put(response("resp_b", 5000));
  CHECK(store.find("resp_b") == nullptr);
  CHECK(store.find("resp_a") != nullptr);
  store.put(response("resp_a", 5000));
  CHECK(store.find("resp_a") == nullptr);
  CHECK(store.used_bytes() == 0);
  ResponseStore none(0);
  none.put(response("resp_a", 0));
  CHECK(none.find("resp_a") == nullptr);
}

TEST_CASE("A response of the same id replaces the older one") {
  ResponseStore store(1 << 20);
  store.put(response("resp_a", 10));
  store.put(response("resp_a", 20));
  CHECK(store.find("resp_a")->object.size() == 20);
  CHECK(store.used_bytes() == response("resp_a", 20).bytes());
}

TEST_CASE("An item is found by its id alone") {
  ResponseStore store(1 << 20);
  store.put(response("resp_my_own_id"));
  CHECK(store.find_item(make_item_id("msg", "resp_my_own_id", 0)) == "out");
  CHECK(store.find_item(make_item_id("msg", "resp_my_own_id", 7)) == "in");
  for (const char* id : {"", "msg", "msg_", "_", "__", "msg_my_own_id_1", "rs_my_own_id_0", "msg_other_0"}) {
    CHECK(store.find_item(id).empty());
  }
}
