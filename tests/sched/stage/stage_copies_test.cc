#include "sched/stage/stage_copies.h"

#include <catch2/catch.hpp>
#include <map>
#include <new>

#include "async/virtual_runtime.h"
#include "sim/simulated_store.h"

using namespace millrace;
using namespace millrace::sched;
using namespace std::chrono_literals;
using cache::CopyId;
using cache::CopyKind;
using cache::PageCopy;

namespace {

constexpr uint32_t kHostPages = 64;
constexpr size_t kPageBytes = 16;

/// Host pages, a store behind them, and copies that take a millisecond.
class HostOnlyRunner final : public StageRunner {
 public:
  HostOnlyRunner(async::Runtime& runtime, const sim::SimulatedStoreOptions& options)
      : runtime_(runtime),
        pages_(kHostPages * kPageBytes),
        store_(sim::make_simulated_store(runtime, {"model", 0, 1, "u8", 1, kPageBytes},
                                         std::make_shared<sim::SimulatedStoreBackend>(kHostPages), options)) {}
  [[nodiscard]] size_t output_row_bytes() const override { return 0; }
  [[nodiscard]] size_t input_row_bytes() const override { return 0; }
  [[nodiscard]] asio::awaitable<Result> run(const StageBatch&, std::span<const std::byte>) override {
    co_return Result{};
  }
  [[nodiscard]] async::Event begin_load(std::vector<PageCopy> asked) override {
    for (const PageCopy& copy : asked) {
      for (size_t i = 0; i < copy.device.size(); ++i) loads[copy.device[i]] = copy.host[i];
    }
    ++load_count;
    const async::Event loaded(runtime_);
    runtime_.arm(runtime_.now() + 1ms, [loaded] { loaded.set(); });
    return loaded;
  }
  [[nodiscard]] asio::awaitable<void> store_pages(const PageCopy&) override {
    co_await async::sleep_for(runtime_, 1ms);
  }
  [[nodiscard]] std::span<std::byte> host_page(uint32_t, HostPageId page) override {
    return std::span(pages_).subspan(page.value() * kPageBytes, kPageBytes);
  }
  [[nodiscard]] cache::PageStore* store(uint32_t) override { return store_.get(); }

  std::map<PageId, HostPageId> loads;
  int load_count = 0;

 private:
  async::Runtime& runtime_;
  std::vector<std::byte> pages_;
  std::unique_ptr<cache::PageStore> store_;
};

/// One stage's copies, and what it says of them.
struct Stage {
  explicit Stage(sim::SimulatedStoreOptions options = {}, bool first = true)
      : runner(runtime, options),
        acks(runtime, first ? 0 : 1),
        copies(runtime, runner, tasks, acks, StageBounds{.host_page_count = kHostPages}) {
    tasks.spawn("listen", listen());
  }
  ~Stage() {
    copies.stop();
    acks.stop();
    world.run();
  }

  asio::awaitable<void> listen() {
    for (;;) {
      const auto complete = co_await acks.next();
      if (complete.empty()) co_return;
      for (const cache::CopyAck& ack : complete) REQUIRE(said.emplace(ack.copy, ack.done).second);
    }
  }
  /// Runs until nothing is under way; pages good of the copies that have ended since the last call, by copy.
  std::map<CopyId, uint32_t> settle() {
    world.run();
    return std::exchange(said, {});
  }
  uint32_t ask(uint64_t id, uint64_t since, std::vector<HostPageId> pages) {
    copies.start(
        {{.id = CopyId(id), .kind = CopyKind::kVerify, .host = std::move(pages), .previous_verify = CopyId(since)}});
    return settle().at(CopyId(id));
  }

  async::VirtualWorld world{1};
  async::Runtime& runtime = world.add_thread();
  HostOnlyRunner runner;
  async::TaskGroup tasks{runtime};
  CopyAcks acks;
  StageCopies copies;
  std::map<CopyId, uint32_t> said;
};

std::vector<HostPageId> host_pages(uint32_t first, uint32_t count) {
  std::vector<HostPageId> pages;
  for (uint32_t i = 0; i < count; ++i) pages.emplace_back(first + i);
  return pages;
}

PageCopy store_of(uint64_t id, const std::vector<HostPageId>& host) {
  return {.id = CopyId(id), .kind = CopyKind::kStore, .device = std::vector<PageId>(host.size()), .host = host};
}

PageCopy with_keys(uint64_t id, CopyKind kind, const std::vector<HostPageId>& host) {
  PageCopy copy{.id = CopyId(id), .kind = kind, .host = host};
  for (const HostPageId page : host) copy.keys.emplace_back().bytes[0] = static_cast<uint8_t>(page.value());
  return copy;
}

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const ErrorException& failure) {
    REQUIRE(failure.error().code == ErrorCode::kData);
    return failure.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a stage verifies host pages it filled and was present for") {
  Stage stage;
  REQUIRE(stage.ask(1, 0, {}) == 0);
  stage.copies.store({store_of(2, host_pages(4, 3))});
  REQUIRE(stage.settle() == std::map<CopyId, uint32_t>{{CopyId(2), 3}});
  REQUIRE(stage.ask(3, 1, host_pages(4, 3)) == 3);
  REQUIRE(stage.ask(5, 3, {HostPageId(5), HostPageId(4), HostPageId(9), HostPageId(6)}) == 2);
  // The next epoch's copies, in the same process.
  StageCopies next(stage.runtime, stage.runner, stage.tasks, stage.acks, StageBounds{.host_page_count = kHostPages});
  next.start({{.id = CopyId(6), .kind = CopyKind::kVerify, .host = host_pages(4, 3), .previous_verify = CopyId(5)}});
  REQUIRE(stage.settle() == std::map<CopyId, uint32_t>{{CopyId(6), 3}});
  next.stop();
  // Another process has answered question 7 in its place.
  REQUIRE(stage.ask(8, 7, host_pages(4, 3)) == 0);
  REQUIRE(stage.ask(9, 8, host_pages(4, 3)) == 0);
}

TEST_CASE("a host page is not read before or during its fill") {
  Stage stage;
  const auto load = [&](uint64_t id) {
    return refusal([&] {
      stage.copies.load({{.id = CopyId(id), .kind = CopyKind::kLoad, .device = {PageId(0)}, .host = {HostPageId(7)}}});
    });
  };
  const auto persist = [&](uint64_t id) {
    return refusal([&] { stage.copies.start({with_keys(id, CopyKind::kPersist, {HostPageId(7)})}); });
  };
  REQUIRE(load(1) == "copy 1 reads host page 7, which holds nothing");
  stage.copies.store({store_of(2, {HostPageId(7)})});
  REQUIRE(load(3) == "copy 3 reads host page 7, which holds nothing");
  (void)stage.settle();
  REQUIRE(load(4).empty());
  REQUIRE(persist(5).empty());
  REQUIRE(stage.settle().size() == 2);
  stage.copies.start({with_keys(6, CopyKind::kFetch, {HostPageId(7)})});
  REQUIRE(persist(7) == "copy 7 reads host page 7, which holds nothing");
  REQUIRE(stage.settle().at(CopyId(6)) == 1);
  REQUIRE(load(8).empty());
  (void)stage.settle();
}

TEST_CASE("all loads of a plan are one copy with an ack each") {
  Stage stage;
  stage.copies.store({store_of(1, host_pages(0, 6))});
  (void)stage.settle();
  std::vector<PageCopy> plan{store_of(2, host_pages(6, 1))};
  for (uint32_t i = 0; i < 3; ++i) {
    plan.push_back({.id = CopyId(3 + i), .kind = CopyKind::kLoad, .device = {PageId(10 + i), PageId(20 + i)}});
    plan.back().host = {HostPageId(i), HostPageId(5 - i)};
  }
  stage.copies.load(plan);
  REQUIRE(stage.settle() == std::map<CopyId, uint32_t>{{CopyId(3), 2}, {CopyId(4), 2}, {CopyId(5), 2}});
  REQUIRE(stage.runner.load_count == 1);
  for (uint32_t i = 0; i < 3; ++i) {
    REQUIRE(stage.runner.loads.at(PageId(10 + i)) == HostPageId(i));
    REQUIRE(stage.runner.loads.at(PageId(20 + i)) == HostPageId(5 - i));
  }
  stage.copies.load({});
  REQUIRE(stage.runner.load_count == 1);
}

TEST_CASE("a fetch is good up to its first missing page") {
  Stage stage;
  stage.copies.store({store_of(1, host_pages(0, 3))});
  (void)stage.settle();
  stage.copies.start({with_keys(2, CopyKind::kPersist, host_pages(0, 3))});
  REQUIRE(stage.settle().at(CopyId(2)) == 3);
  PageCopy fetch = with_keys(3, CopyKind::kFetch, host_pages(10, 5));
  for (uint8_t i = 0; i < 5; ++i) fetch.keys[i].bytes[0] = i == 2 ? 77 : i % 3;  // 0 1 - 0 1
  stage.copies.start({fetch});
  REQUIRE(stage.settle().at(CopyId(3)) == 2);
  REQUIRE(stage.ask(4, 0, host_pages(10, 5)) == 2);
  REQUIRE(stage.ask(5, 4, host_pages(13, 2)) == 0);
}

TEST_CASE("the end of an epoch starts no store work and fails the rest") {
  Stage stage({.delay = [](sim::StoreCall, size_t) { return async::Duration(1s); }});
  stage.copies.store({store_of(1, host_pages(0, 40))});
  (void)stage.settle();
  stage.copies.start({with_keys(2, CopyKind::kPersist, host_pages(0, 40))});
  stage.world.run(stage.world.now() + 500ms);
  stage.copies.stop();
  stage.acks.stop();
  REQUIRE(stage.settle().empty());  // whom should it tell?
  REQUIRE(stage.runner.store(0)->stats().written == 16);
  stage.copies.start({with_keys(3, CopyKind::kFetch, host_pages(40, 16))});
  (void)stage.settle();
  REQUIRE(stage.runner.store(0)->stats().hits == 0);
}

TEST_CASE("a copy ends when earlier stages ended it too") {
  Stage stage({}, false);
  stage.copies.start({{.id = CopyId(1), .kind = CopyKind::kVerify}});
  stage.copies.store({store_of(2, host_pages(0, 3)), store_of(3, host_pages(3, 3))});
  REQUIRE(stage.settle().empty());
  const std::vector<cache::CopyAck> before{{CopyId(3), 2}, {CopyId(1), 0}, {CopyId(4), 9}};
  stage.acks.add(0, before);
  REQUIRE(stage.settle() == std::map<CopyId, uint32_t>{{CopyId(1), 0}, {CopyId(3), 2}});
  stage.copies.start(
      {with_keys(4, CopyKind::kProbe, host_pages(0, 5))});  // its plan came behind the stage before's word
  stage.acks.add(0, std::vector<cache::CopyAck>{{CopyId(2), 3}});
  REQUIRE(stage.settle() == std::map<CopyId, uint32_t>{{CopyId(2), 3}, {CopyId(4), 0}});
}

TEST_CASE("an unexpected or duplicate ack ends the ring") {
  Stage stage({}, false);
  const std::vector<cache::CopyAck> ack{{CopyId(1), 1}};
  stage.acks.add(0, ack);
  REQUIRE(refusal([&] { stage.acks.add(0, ack); }) == "copy 1 is acknowledged twice");
  std::vector<cache::CopyAck> many;
  for (uint64_t i = 0; i <= uint64_t{1} << 20; ++i) many.push_back({CopyId(i + 2), 0});
  REQUIRE(refusal([&] { stage.acks.add(0, many); }) == "over 1048576 copies have not ended");
}

TEST_CASE("pages whose store work throws are not good") {
  int calls = 0;
  Stage stage({.fails = [&calls](sim::StoreCall) -> bool {
    if (++calls == 45) throw std::bad_alloc();
    return false;
  }});
  stage.copies.store({store_of(1, host_pages(0, 40))});
  (void)stage.settle();
  stage.copies.start({with_keys(2, CopyKind::kPersist, host_pages(0, 40))});
  REQUIRE(stage.settle().at(CopyId(2)) == 40);
  stage.copies.start({with_keys(3, CopyKind::kFetch, host_pages(0, 20))});
  REQUIRE(stage.settle().at(CopyId(3)) == 0);
  REQUIRE(stage.runner.host_tier().valid[0][0] == false);
}
