#include "cache/queued_store.h"

#include <catch2/catch.hpp>

#include "cache/store_support.h"

using namespace millrace;
using namespace millrace::cache;
using namespace millrace::test;

namespace {

using Kind = StoreOp::Kind;

struct Queue {
  bool push(Kind kind) {
    return queue.try_push(std::make_shared<StoreOp>(StoreOp{kind, {}, {}, {}, async::Event(world.runtime())}));
  }
  size_t push(Kind kind, size_t count) {
    size_t pushed = 0;
    while (pushed < count && push(kind)) ++pushed;
    return pushed;
  }

  StoreWorld world;
  StoreQueue queue{4};
};

}  // namespace

TEST_CASE("reads go before puts, but a put that waits is passed by eight at most") {
  Queue world;
  REQUIRE(world.push(Kind::kPut, 2) == 2);
  REQUIRE(world.push(Kind::kGet, 100) == 100);
  std::vector<size_t> puts;
  for (size_t i = 0; i < 102; ++i) {
    if (world.queue.try_pop()->kind == Kind::kPut) puts.push_back(i);
  }
  REQUIRE(puts.size() == 2);
  REQUIRE(puts[0] > 0);
  REQUIRE(puts[0] <= 8);
  REQUIRE(puts[1] - puts[0] <= 9);
  REQUIRE(world.queue.try_pop() == nullptr);
}

TEST_CASE("a batch is one worker's share, of puts alone or of reads alone") {
  Queue world;
  REQUIRE(world.push(Kind::kGet, 5) == 5);
  REQUIRE(world.push(Kind::kExists, 5) == 5);
  REQUIRE(world.push(Kind::kPut, 3) == 3);
  std::vector<size_t> shares;
  for (;;) {
    const auto batch = world.queue.try_pop_batch(4, 2);
    if (batch.empty()) break;
    const bool is_put = batch.front()->kind == Kind::kPut;
    for (const StoreOpPtr& op : batch) REQUIRE((op->kind == Kind::kPut) == is_put);
    shares.push_back(batch.size());
  }
  REQUIRE(shares == std::vector<size_t>{4, 3, 2, 1, 2, 1});
}

TEST_CASE("a queue has a bound for puts and one for reads, and takes nothing more when it is closed") {
  Queue world;
  REQUIRE(world.push(Kind::kPut, 100) == 4);
  REQUIRE(world.push(Kind::kGet, StoreQueue::kMaxReads + 100) == StoreQueue::kMaxReads);
  REQUIRE(world.queue.try_pop()->kind == Kind::kGet);
  REQUIRE(world.push(Kind::kExists));
  REQUIRE(world.queue.close(1).size() == 4 + StoreQueue::kMaxReads);
  REQUIRE_FALSE(world.push(Kind::kGet));
  REQUIRE(world.queue.try_pop() == nullptr);
}
