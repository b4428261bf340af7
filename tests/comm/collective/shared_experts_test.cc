#include "comm/collective/shared_experts.h"

#include <atomic>
#include <cstring>
#include <future>
#include <numeric>
#include <thread>

#include "base/random.h"
#include "comm/collective/epoch_experts.h"
#include "comm/collective/tcp_experts_group.h"
#include "comm/tcp_support.h"
#include "conformance/rank_group.h"
#include "cpu/cpu_backend.h"
#include "support/effort.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;
using tensor::DType;
using tensor::Matrix;

namespace {

constexpr int64_t kHidden = 40;
constexpr int64_t kExperts = 8;

/// The matrices of one rank for so many rows of its ring, and of all rings.
struct ExchangeMatrices {
  ExchangeMatrices(int64_t rows, int64_t all_rows)
      : x(static_cast<size_t>(rows * kHidden) * 4),
        logits(static_cast<size_t>(rows * kExperts) * 4),
        sums(static_cast<size_t>(rows * kHidden) * 4),
        all_x(static_cast<size_t>(all_rows * kHidden) * 4),
        all_logits(static_cast<size_t>(all_rows * kExperts) * 4),
        all_sums(static_cast<size_t>(all_rows * kHidden) * 4) {}
  std::vector<std::byte> x, logits, sums, all_x, all_logits, all_sums;
};

/// The ranks of some rings at one stage. The ends are destroyed before the backends and the matrices.
struct Rings {
  int32_t ring_count = 2;
  int32_t rank_count = 1;
  std::vector<std::vector<std::unique_ptr<ExchangeMatrices>>> matrices;  // by end: others read them until its next call
  std::vector<std::unique_ptr<tensor::Backend>> backends;
  std::vector<std::unique_ptr<tensor::ExpertExchange>> ends;
  [[nodiscard]] size_t size() const { return ends.size(); }
  [[nodiscard]] int32_t ring_of(size_t end) const { return static_cast<int32_t>(end) / rank_count; }
};

/// How the ranks of the rings reach each other: in memory, over TCP with a process per ring, or with one per rank.
enum class Path : uint8_t { kMemory, kTcp, kTcpOfRanks };

Rings make_rings(Path path, int32_t ring_count, int32_t rank_count, comm::SharedExperts::AbortFn on_abort = {}) {
  Rings rings{.ring_count = ring_count, .rank_count = rank_count, .matrices = {}, .backends = {}, .ends = {}};
  rings.matrices.resize(static_cast<size_t>(ring_count * rank_count));
  const comm::SharedExperts::Shape shape{.ring_count = ring_count, .rank_count = rank_count, .stage_count = 1};
  std::shared_ptr<comm::SharedExperts> shared;
  TcpRings divided;
  if (path == Path::kMemory) {
    shared = std::make_shared<comm::SharedExperts>(shape, std::move(on_abort));
  } else {
    divided = connect_rings(shape, on_abort, path == Path::kTcpOfRanks);
  }
  for (int32_t end = 0; end < ring_count * rank_count; ++end) {
    const int32_t ring = end / rank_count;
    const int32_t rank = end % rank_count;
    tensor::Backend& backend = *rings.backends.emplace_back(cpu::make_backend({.threads = 1}));
    const auto process = static_cast<size_t>(path == Path::kTcpOfRanks ? end : ring);
    rings.ends.push_back(shared ? comm::SharedExperts::join(shared, 0, ring, rank, backend)
                                : comm::TcpExperts::join(divided[process], 0, rank, backend));
  }
  return rings;
}

using EndWork = std::function<void(size_t end)>;

/// Runs `work` for all ends at once. Returns by end what it threw, or null.
std::vector<std::exception_ptr> try_on_all_ends(Rings& rings, const EndWork& work) {
  std::vector<std::promise<std::exception_ptr>> outcomes(rings.size());
  for (size_t end = 0; end < rings.size(); ++end) {
    const auto run = [&rings, &work, end] {
      try {
        work(end);
      } catch (...) {
        rings.ends[end]->abort("an end has failed");  // or the others wait forever
        throw;
      }
    };
    rings.backends[end]->submit(run,
                                [&outcomes, end](std::exception_ptr failure) { outcomes[end].set_value(failure); });
  }
  std::vector<std::exception_ptr> failures;
  for (auto& outcome : outcomes) failures.push_back(outcome.get_future().get());
  return failures;
}

/// Throws unless `holds`. Catch's own assertions are for one thread.
void require_here(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

/// The value of a ring's row before the exchange.
float value_at(uint64_t seed, int32_t ring, int64_t at) {
  return static_cast<float>(uniform_at(seed + static_cast<uint64_t>(ring) * 1000, static_cast<uint64_t>(at))) - 0.5F;
}

/// What the experts of a position make of a value: something whose sums depend on their order.
float part_of(float value, int32_t position) {
  return value * (1.0F + 0.37F * static_cast<float>(position));
}

Matrix view(std::vector<std::byte>& bytes, int64_t rows, int64_t cols) {
  return {.data = bytes.data(), .dtype = DType::kF32, .rows = rows, .cols = cols};
}

float* floats(std::vector<std::byte>& bytes) {
  return reinterpret_cast<float*>(bytes.data());
}

/// Exchanges `rows` rows per ring, and requires that each rank gets the sums of the tree over all positions.
void exchange_once(Rings& rings, size_t end, uint64_t seed, const std::vector<int64_t>& rows) {
  const int32_t ring = rings.ring_of(end);
  const int64_t own = rows[static_cast<size_t>(ring)];
  const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  rings.matrices[end].push_back(std::make_unique<ExchangeMatrices>(own, total));
  ExchangeMatrices& memory = *rings.matrices[end].back();
  for (int64_t i = 0; i < own * kHidden; ++i) floats(memory.x)[i] = value_at(seed, ring, i);
  for (int64_t i = 0; i < own * kExperts; ++i) floats(memory.logits)[i] = value_at(seed + 1, ring, i);
  tensor::ExpertExchange& exchange = *rings.ends[end];
  const int64_t found = exchange.dispatch(view(memory.x, own, kHidden), view(memory.logits, own, kExperts),
                                          view(memory.all_x, total, kHidden), view(memory.all_logits, total, kExperts));
  require_here(found == total, "another number of rows");
  int64_t at = 0;
  for (int32_t other = 0; other < rings.ring_count; ++other) {
    const int64_t count = rows[static_cast<size_t>(other)];
    for (int64_t i = 0; i < count * kHidden; ++i)
      require_here(floats(memory.all_x)[at * kHidden + i] == value_at(seed, other, i), "another value of x");
    for (int64_t i = 0; i < count * kExperts; ++i)
      require_here(floats(memory.all_logits)[at * kExperts + i] == value_at(seed + 1, other, i), "another logit");
    at += count;
  }
  for (int64_t i = 0; i < total * kHidden; ++i)
    floats(memory.all_sums)[i] = part_of(floats(memory.all_x)[i], exchange.position().rank);
  exchange.combine(view(memory.all_sums, total, kHidden), view(memory.sums, own, kHidden));
  std::vector<Values> parts(rings.size());
  for (size_t position = 0; position < rings.size(); ++position) {
    for (int64_t i = 0; i < own * kHidden; ++i)
      parts[position].push_back(part_of(floats(memory.x)[i], static_cast<int32_t>(position)));
  }
  const Values wanted = add_in_tree(parts);
  require_here(std::memcmp(wanted.data(), memory.sums.data(), memory.sums.size()) == 0, "other bits of the sums");
}

/// Nobody comes: the deadline names whom the ring waits for, and an end that is set early is no failure of theirs.
asio::awaitable<void> require_no_connection(TcpWorld& world, comm::TcpExpertsOptions options) {
  const async::Event late(world.runtime);
  const auto timed_out =
      co_await comm::TcpExperts::connect(world.runtime, *world.listener, options, {}, late, world.runtime.now() + 20ms);
  REQUIRE(timed_out.error().code == ErrorCode::kTimeout);
  REQUIRE_THAT(timed_out.error().message, Mentions("the experts of ring 1", "rank 0 of stage 0"));
  const async::Event early(world.runtime);
  early.set();
  const auto ended =
      co_await comm::TcpExperts::connect(world.runtime, *world.listener, options, {}, early, world.soon());
  REQUIRE(ended.error().code == ErrorCode::kAborted);
}

asio::awaitable<void> connect_epoch(TcpWorld& world, comm::EpochExperts& experts, comm::ExpertEpoch epoch,
                                    Result<void>& connected) {
  connected = co_await experts.connect(world.runtime, std::move(epoch), {}, world.soon());
}

/// Two rings of one rank meet in epoch 5. The epochs after it end for one of them before or while it connects.
asio::awaitable<void> meet_and_end(TcpWorld& world, comm::EpochExperts& first, comm::EpochExperts& second) {
  const uint16_t port = first.listen(world.runtime).value();
  REQUIRE(first.listen(world.runtime).value() == port);
  comm::ExpertEpoch epoch{.number = 5, .endpoints = {{{"", port}}, {{"", second.listen(world.runtime).value()}}}};
  Result<void> of_first = Error{};
  Result<void> of_second = Error{};
  async::TaskGroup tasks(world.runtime);
  tasks.spawn("first", connect_epoch(world, first, epoch, of_first));
  tasks.spawn("second", connect_epoch(world, second, epoch, of_second));
  co_await tasks.join();
  REQUIRE(of_first.has_value());
  REQUIRE(of_second.has_value());
  epoch.number = 6;
  first.end(6, 1, "the power is off");
  co_await connect_epoch(world, first, epoch, of_first);
  REQUIRE(of_first.error().code == ErrorCode::kUnavailable);
  REQUIRE(of_first.error().message == "ring 1: the power is off");
  epoch.number = 7;
  tasks.spawn("first", connect_epoch(world, first, epoch, of_first));
  co_await async::sleep_for(world.runtime, 5ms);
  first.interrupt();
  co_await tasks.join();
  REQUIRE(of_first.error().code == ErrorCode::kUnavailable);
  epoch.endpoints[1].clear();
  co_await connect_epoch(world, second, epoch, of_second);
  REQUIRE(of_second.error().code == ErrorCode::kData);
  co_await first.close();
  co_await second.close();
}

void rethrow_first(const std::vector<std::exception_ptr>& failures) {
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace

TEST_CASE("Shared experts: every ring gets the sums of the tree") {
  const Path path = GENERATE(Path::kMemory, Path::kTcp, Path::kTcpOfRanks);
  for (const auto& [ring_count, rank_count] : {std::pair{2, 1}, {2, 2}, {4, 1}, {4, 2}, {8, 1}, {2, 4}}) {
    CAPTURE(ring_count, rank_count);
    Rings rings = make_rings(path, ring_count, rank_count);
    rethrow_first(try_on_all_ends(rings, [&](size_t end) {
      require_here(rings.ends[end]->position().rank == static_cast<int32_t>(end), "another position");
      for (uint64_t step = 1; step <= test::repetitions(30); ++step) {
        std::vector<int64_t> rows;
        for (int32_t ring = 0; ring < ring_count; ++ring) {
          const double dice = uniform_at(step, static_cast<uint64_t>(ring));
          rows.push_back(dice < 0.4 ? 0 : static_cast<int64_t>(dice * (step % 10 == 0 ? 900 : 20)));
        }
        const bool any = std::ranges::any_of(rows, [](int64_t count) { return count > 0; });
        const bool own = rows[static_cast<size_t>(rings.ring_of(end))] > 0;
        require_here(rings.ends[end]->begin_step(step, own) == any, "another answer to begin_step");
        for (uint64_t layer = 0; any && layer < 3; ++layer) exchange_once(rings, end, 10 * step + layer, rows);
      }
    }));
  }
}

TEST_CASE("Shared experts: an abort ends all rings by name") {
  const Path path = GENERATE(Path::kMemory, Path::kTcp, Path::kTcpOfRanks);
  for (const int32_t rank_count : {1, 2}) {
    std::atomic<int> aborts = 0;
    std::atomic<int> wrong_aborts = 0;
    Rings rings = make_rings(path, 2, rank_count, [&](int32_t ring, const std::string& reason) {
      ++aborts;
      if (ring != 1 || reason != "the power is off") ++wrong_aborts;
    });
    const auto last = rings.size() - 1;
    const auto failures = try_on_all_ends(rings, [&](size_t end) {
      if (end != last) return (void)rings.ends[end]->begin_step(1, true);
      std::this_thread::sleep_for(5ms);
      rings.ends[end]->abort("the power is off");
      rings.ends[end]->abort("a later reason");
      (void)rings.ends[end]->begin_step(1, true);
    });
    for (size_t end = 0; end < rings.size(); ++end) {
      const std::string message = message_of(failures[end]);
      REQUIRE(message == (rings.ring_of(end) == 1 ? "the power is off" : "ring 1: the power is off"));
    }
    const int processes = path == Path::kMemory ? 1 : path == Path::kTcp ? 2 : 2 * rank_count;
    REQUIRE(aborts == processes);
    REQUIRE(wrong_aborts == 0);
  }
}

TEST_CASE("Shared experts: rings at different steps end the exchange") {
  Rings rings = make_rings(GENERATE(Path::kMemory, Path::kTcp), 2, 1);
  const auto failures =
      try_on_all_ends(rings, [&](size_t end) { (void)rings.ends[end]->begin_step(end == 0 ? 5 : 7, true); });
  for (const std::exception_ptr& failure : failures) {
    REQUIRE_THAT(message_of(failure), Mentions("ring 0 is at step 5", "ring 1 at step 7"));
  }
}

TEST_CASE("Shared experts: an end that is destroyed frees the others") {
  Rings rings = make_rings(GENERATE(Path::kMemory, Path::kTcp), 4, 1);
  std::thread destroyer([&] {
    std::this_thread::sleep_for(5ms);
    rings.ends[2].reset();
  });
  const auto failures = try_on_all_ends(rings, [&](size_t end) {
    if (end != 2) (void)rings.ends[end]->begin_step(1, false);
  });
  destroyer.join();
  for (size_t end = 0; end < 4; ++end) {
    if (end != 2) REQUIRE_THAT(message_of(failures[end]), Mentions("ring 2: ", "has left"));
  }
}

TEST_CASE("Shared experts: a process that dies is named by its ring") {
  TcpRings processes = connect_rings({.ring_count = 4, .rank_count = 1, .stage_count = 1}, {});
  std::vector<std::unique_ptr<tensor::Backend>> backends;
  std::vector<std::promise<std::exception_ptr>> outcomes(3);
  std::vector<std::unique_ptr<tensor::ExpertExchange>> ends;
  for (size_t ring = 0; ring < 3; ++ring) {
    backends.push_back(cpu::make_backend({.threads = 1}));
    ends.push_back(comm::TcpExperts::join(processes[ring], 0, 0, *backends.back()));
    // The list of ends grows meanwhile.
    backends.back()->submit([end = ends.back().get()] { (void)end->begin_step(1, true); },
                            [&outcomes, ring](std::exception_ptr failure) { outcomes[ring].set_value(failure); });
  }
  std::this_thread::sleep_for(5ms);
  processes[3].reset();  // its sockets close without a goodbye
  for (auto& outcome : outcomes) {
    REQUIRE_THAT(message_of(outcome.get_future().get()),
                 Mentions("ring 3: rank 0 of stage 0 at 127.0.0.1", "closed the connection"));
  }
}

TEST_CASE("Shared experts: more rows than there is room for end all") {
  Rings rings = make_rings(Path::kTcp, 2, 1);
  const auto failures = try_on_all_ends(rings, [&](size_t end) {
    const int64_t own = end == 0 ? 3 : 5;
    rings.matrices[end].push_back(std::make_unique<ExchangeMatrices>(own, 6));
    ExchangeMatrices& memory = *rings.matrices[end].back();
    (void)rings.ends[end]->begin_step(1, true);
    (void)rings.ends[end]->dispatch(view(memory.x, own, kHidden), view(memory.logits, own, kExperts),
                                    view(memory.all_x, 6, kHidden), view(memory.all_logits, 6, kExperts));
  });
  for (const std::exception_ptr& failure : failures)
    REQUIRE_THAT(message_of(failure), Mentions("8 rows", "room for 6"));
}

TEST_CASE("Shared experts: connecting ends early and late by name") {
  TcpWorld world;
  comm::TcpExpertsOptions options{.shape = {.ring_count = 2, .rank_count = 1, .stage_count = 1},
                                  .ring = 0,
                                  .here = {},
                                  .epoch = {.number = 5, .endpoints = {{{"127.0.0.1", 1}}, {{"127.0.0.1", 1}}}},
                                  .sockets = patient_options(),
                                  .silence = kPatience};
  world.run(require_no_connection(world, options));
}

TEST_CASE("Shared experts: rings meet epoch by epoch") {
  TcpWorld world;
  const comm::SharedExperts::Shape shape{.ring_count = 2, .rank_count = 1, .stage_count = 1};
  comm::EpochExperts first({.shape = shape, .ring = 0, .silence = kPatience});
  comm::EpochExperts second({.shape = shape, .ring = 1, .silence = kPatience});
  world.run(meet_and_end(world, first, second));
}
