#include "sched/stage/stage_inputs.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "async/run.h"
#include "async/real_runtime.h"
#include "base/random.h"
#include "base/result.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

struct Post {
  PlanId plan;
  std::span<std::byte> target;
};

/// Keeps what is posted; its activations lie there at once.
class FakeReceiver final : public comm::LinkReceiver {
 public:
  explicit FakeReceiver(bool fills) : fills_(fills) {}
  [[nodiscard]] bool fills_posted() const override { return fills_; }
  void post(PlanId plan, std::span<std::byte> target) override { posts.push_back({plan, target}); }
  asio::awaitable<comm::Message> receive(comm::MessageKind kind) override {
    const Post& post = posts.at(received++);
    co_return comm::Message{kind, RingEpoch(1), post.plan, comm::Payload::share(post.target, nullptr)};
  }
  void close(std::string) override {}

  std::vector<Post> posts;
  size_t received = 0;

 private:
  const bool fills_;
};

class FakeRunner final : public StageRunner {
 public:
  [[nodiscard]] size_t output_row_bytes() const override { return 0; }
  [[nodiscard]] size_t input_row_bytes() const override { return 100; }
  [[nodiscard]] std::span<std::byte> input_memory(size_t bytes, Memory) override {
    memory.resize(bytes);
    return memory;
  }
  asio::awaitable<Result> run(const StageBatch&, std::span<const std::byte>) override { co_return Result{}; }

  std::vector<std::byte> memory;
};

Plan plan_of(uint64_t id, size_t rows) {
  Plan plan;
  plan.id = PlanId(id);
  plan.tokens.resize(rows);
  return plan;
}

constexpr StageBounds kBounds{.slot_count = 1, .page_size = 1, .page_count = 1, .max_batch_tokens = 10};

asio::awaitable<void> take_next(StageInputs& inputs, uint64_t id, size_t rows) {
  const comm::Message message = co_await inputs.receive(plan_of(id, rows));
  REQUIRE(message.payload.bytes().size() == rows * 100);
}

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

}  // namespace

TEST_CASE("circular allocations never overlap and two largest fit") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    uint64_t draws = 0;
    const auto below = [&](size_t bound) {
      return static_cast<size_t>(uniform_at(seed, draws++) * static_cast<double>(bound));
    };
    const size_t largest = 64 * (1 + below(20));
    std::vector<std::byte> memory(3 * largest);
    CircularAllocator ring(memory);
    std::deque<std::span<std::byte>> out;
    for (int step = 0; step < 500; ++step) {
      const size_t size = below(3) == 0 ? largest : 1 + below(largest);
      const auto piece = ring.allocate(size);
      REQUIRE((piece || out.size() >= 2));
      if (piece) {
        REQUIRE(piece->size() == size);
        REQUIRE((piece->data() - memory.data()) % CircularAllocator::kAlignment == 0);
        REQUIRE(piece->data() + size <= memory.data() + memory.size());
        for (const auto& other : out) REQUIRE_FALSE(overlap(*piece, other));
        out.push_back(*piece);
      }
      while (!out.empty() && (!piece || below(2) == 0)) {
        ring.free_oldest();
        out.pop_front();
        if (out.size() < 2) break;
      }
      REQUIRE(ring.allocated_count() == out.size());
    }
  }
}

TEST_CASE("a circular buffer for three large pieces holds many small") {
  std::vector<std::byte> memory(3 * 6400);
  CircularAllocator ring(memory);
  size_t count = 0;
  while (ring.allocate(60)) ++count;
  REQUIRE(count == 300);
  ring.free_oldest();
  REQUIRE(ring.allocate(64));
  REQUIRE_FALSE(ring.allocate(1));
}

TEST_CASE("receives are posted for known plans while there is room") {
  FakeReceiver receiver(true);
  FakeRunner runner;
  StageInputs inputs(receiver, runner, kBounds);
  for (uint64_t id = 1; id <= 4; ++id) inputs.expect(plan_of(id, 10));
  REQUIRE(receiver.posts.size() == 3);
  inputs.expect(plan_of(5, 1));
  REQUIRE(receiver.posts.size() == 3);  // in the order of the plans, though this one would fit
  asio::io_context context(1);
  test::run_to_end(context, take_next(inputs, 1, 10));
  REQUIRE(receiver.posts.size() == 3);
  inputs.release();
  REQUIRE(receiver.posts.size() == 4);
  REQUIRE(receiver.posts[3].plan == PlanId(4));
  REQUIRE(receiver.posts[3].target.data() == runner.memory.data());
  test::run_to_end(context, take_next(inputs, 2, 10));
  inputs.release();
  REQUIRE(receiver.posts.back().plan == PlanId(5));
  REQUIRE(receiver.posts.back().target.size() == 100);
}

TEST_CASE("activations of another plan or size are refused") {
  FakeReceiver receiver(true);
  FakeRunner runner;
  StageInputs inputs(receiver, runner, kBounds);
  inputs.expect(plan_of(1, 3));
  asio::io_context context(1);
  REQUIRE_THROWS_AS(test::run_to_end(context, take_next(inputs, 2, 3)), ErrorException);
}

TEST_CASE("an in-process link needs no posts and no memory") {
  FakeReceiver receiver(false);
  FakeRunner runner;
  StageInputs inputs(receiver, runner, kBounds);
  inputs.expect(plan_of(1, 10));
  inputs.release();
  REQUIRE(receiver.posts.empty());
  REQUIRE(runner.memory.empty());
}
