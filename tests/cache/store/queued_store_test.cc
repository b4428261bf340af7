#include "cache/store/queued_store.h"

#include <catch2/catch.hpp>
#include <thread>

#include "cache/store/store_support.h"

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
  StoreQueue queue{10};
};

/// Its puts get stuck: nobody serves them.
class StuckStore final : public QueuedStore {
 public:
  explicit StuckStore(async::Runtime& runtime) : QueuedStore(runtime, make_identity(), 100) {}
  ~StuckStore() override {
    close_queues(1);
    reader_.join();
  }

 private:
  void read() {
    while (!read_queue_.closed()) {
      if (!read_queue_.wait(-1)) continue;
      if (const StoreOpPtr op = read_queue_.try_pop()) finish(op, true);
    }
  }
  std::thread reader_{[this] { read(); }};
};

asio::awaitable<void> put_into(PageStore& store, const std::vector<std::byte>& page, size_t& refused) {
  const bool is_stored = co_await store.put(make_key(1), page);
  if (!is_stored) ++refused;
}

}  // namespace

TEST_CASE("reads go on while puts hang and close refuses those") {
  StoreWorld world;
  auto store = std::make_unique<StuckStore>(world.runtime());
  const std::vector<std::byte> page = make_page(1);
  size_t refused = 0;
  async::TaskGroup group(world.runtime());
  const auto script = [&]() -> asio::awaitable<void> {
    for (int i = 0; i < 50; ++i) group.spawn("put", put_into(*store, page, refused));
    std::vector<std::byte> into(kPageBytes);
    for (int i = 0; i < 50; ++i) {
      REQUIRE(co_await store->exists(make_key(2)));
      REQUIRE(co_await store->get(make_key(2), into));
    }
    REQUIRE(group.size() == 50);
    store.reset();
    co_await group.join();
  };
  world.run(script());
  REQUIRE(refused == 50);
}

TEST_CASE("a batch goes to one worker") {
  Queue world;
  REQUIRE(world.push(Kind::kGet, 5) == 5);
  REQUIRE(world.push(Kind::kExists, 5) == 5);
  std::vector<size_t> shares;
  for (;;) {
    const auto batch = world.queue.try_pop_batch(4, 2);
    if (batch.empty()) break;
    shares.push_back(batch.size());
  }
  REQUIRE(shares == std::vector<size_t>{4, 3, 2, 1});
}

TEST_CASE("a queue is bounded and ordered and refuses when closed") {
  Queue world;
  REQUIRE(world.push(Kind::kGet, 9) == 9);
  REQUIRE(world.push(Kind::kPut, 100) == 1);
  REQUIRE(world.queue.try_pop()->kind == Kind::kGet);
  REQUIRE(world.push(Kind::kExists));
  REQUIRE(world.queue.close(1).size() == 10);
  REQUIRE_FALSE(world.push(Kind::kGet));
  REQUIRE(world.queue.try_pop() == nullptr);
}
