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
    return queue.try_push(std::make_shared<StoreOp>(kind, PageKey{}, std::span<std::byte>(),
                                                    std::span<const std::byte>(), async::Event(world.runtime())));
  }
  size_t push(Kind kind, size_t count) {
    size_t pushed = 0;
    while (pushed < count && push(kind)) ++pushed;
    return pushed;
  }

  StoreWorld world;
  StoreQueue queue{10};
};

/// A store whose puts wait for ever in the queue, since nobody serves them. With `hangs`, its only reader never returns
/// from the first get until it is released.
class StuckStore final : public QueuedStore {
 public:
  explicit StuckStore(async::Runtime& runtime, bool hangs = false, const StoreTimeLimits& limits = {})
      : QueuedStore(runtime, make_identity(), 100, limits), hangs_(hangs) {}
  void start() {
    start_worker("reader", [this] { read(); });
  }
  void release() { is_released_.store(true); }

 private:
  void read() {
    while (!read_queue_.closed()) {
      if (!read_queue_.wait(-1)) continue;
      const StoreOpPtr op = read_queue_.try_pop();
      if (op == nullptr || !begin(op)) continue;
      while (hangs_ && !is_released_.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      finish(op, true);
    }
  }
  [[nodiscard]] std::string name() const override { return "stuck"; }
  void stop_keepers() override {}

  const bool hangs_;
  std::atomic<bool> is_released_{false};
};

asio::awaitable<void> put_into(PageStore& store, const std::vector<std::byte>& page, size_t& refused) {
  const bool is_stored = co_await store.put(make_key(1), page);
  if (!is_stored) ++refused;
}

}  // namespace

TEST_CASE("reads go on while puts hang and close refuses those") {
  StoreWorld world;
  const auto stuck = std::make_shared<StuckStore>(world.runtime());
  stuck->start();
  auto store = make_page_store(stuck);
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

TEST_CASE("A get that hangs is given up and its buffer stays alone") {
  StoreWorld world;
  const CapturedLog log;
  const auto stuck = std::make_shared<StuckStore>(
      world.runtime(), true,
      StoreTimeLimits{.operation = std::chrono::milliseconds(50), .close = std::chrono::seconds(60)});
  stuck->start();
  auto store = make_page_store(stuck);
  std::vector<std::byte> into(kPageBytes, std::byte{7});
  const std::vector<std::byte> before = into;
  const auto script = [&]() -> asio::awaitable<void> {
    CHECK_FALSE(co_await store->get(make_key(1), into));
    CHECK_FALSE(co_await store->get(make_key(1), into));  // refused at once
    CHECK_FALSE(co_await store->exists(make_key(1)));
    stuck->release();
    co_return;
  };
  world.run(script());
  store.reset();  // joins the reader, whose get now ends
  CHECK(into == before);
  CHECK(log.text().find("page store stuck: a get or probe has not ended") != std::string::npos);
  CHECK(stuck->stats().misses == 2);
  CHECK(stuck->stats().hits == 0);
}

TEST_CASE("A store whose I/O never ends can be closed") {
  StoreWorld world;
  const CapturedLog log;
  auto stuck = std::make_shared<StuckStore>(
      world.runtime(), true,
      StoreTimeLimits{.operation = std::chrono::hours(1), .close = std::chrono::milliseconds(20)});
  stuck->start();
  auto store = make_page_store(stuck);
  std::vector<std::byte> into(kPageBytes);
  bool is_good = true;
  async::TaskGroup group(world.runtime());
  const auto get = [](PageStore& one, std::span<std::byte> page, bool& good) -> asio::awaitable<void> {
    good = co_await one.get(make_key(1), page);
  };
  const auto script = [&]() -> asio::awaitable<void> {
    group.spawn("get", get(*store, into, is_good));
    co_await async::sleep_for(world.runtime(), std::chrono::milliseconds(20));
    store.reset();
    co_await group.join();
  };
  world.run(script());
  CHECK_FALSE(is_good);
  CHECK(log.text().find("page store stuck: its I/O has not ended") != std::string::npos);
  // The thread that was left behind ends with the store that it shares.
  const std::weak_ptr<StuckStore> left = stuck;
  stuck->release();
  stuck.reset();
  wait_until([&] { return left.expired(); });
}

TEST_CASE("Operations under way can be given up") {
  StoreWorld world;
  const auto stuck = std::make_shared<StuckStore>(
      world.runtime(), true, StoreTimeLimits{.operation = std::chrono::hours(1), .close = std::chrono::seconds(60)});
  stuck->start();
  auto store = make_page_store(stuck);
  const std::vector<std::byte> page = make_page(1);
  size_t refused = 0;
  async::TaskGroup group(world.runtime());
  const auto script = [&]() -> asio::awaitable<void> {
    for (int i = 0; i < 5; ++i) group.spawn("put", put_into(*store, page, refused));
    std::vector<std::byte> into(kPageBytes);
    co_await async::sleep_for(world.runtime(), std::chrono::milliseconds(5));
    store->give_up();
    co_await group.join();
    stuck->release();
    CHECK(co_await store->get(make_key(2), into));
  };
  world.run(script());
  CHECK(refused == 5);
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
  REQUIRE(world.queue.try_pop()->kind() == Kind::kGet);
  REQUIRE(world.push(Kind::kExists));
  REQUIRE(world.queue.close(1).size() == 10);
  REQUIRE_FALSE(world.push(Kind::kGet));
  REQUIRE(world.queue.try_pop() == nullptr);
}
