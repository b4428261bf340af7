#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "async/real_runtime.h"
#include "comm/collective/shared_experts.h"
#include "comm/collective/tcp_experts.h"
#include "cpu/cpu_backend.h"
#include "sched/steps/remote_step_group.h"
#include "sched/steps/step_participant.h"
#include "sched/steps/step_server.h"

/// The cost of stepping together for rings that share experts: the coordinator's part of a step, how soon an idle ring
/// wakes, a step without rows, and how long an idle ring runs them.
namespace {

using namespace millrace;
using Clock = std::chrono::steady_clock;
using tensor::DType;
using tensor::Matrix;

struct StepBenchOptions {
  int32_t rings = 2;
  int32_t layers = 48;
  int32_t threads = 1;
  int64_t hidden = 2048;
  int64_t experts = 128;
  std::vector<int64_t> rows{1, 32, 512};
  size_t rounds = 7;
  int64_t steps = 2000;
  uint64_t lookahead = 24;
};

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

std::string summary(std::vector<double> values) {
  std::ranges::sort(values);
  return fmt::format("{:.3f} [{:.3f}, {:.3f}]", values[values.size() / 2], values.front(), values.back());
}

/// The heads of some rings, each with a thread.
struct Heads {
  std::vector<std::unique_ptr<async::IoThread>> threads;
  std::vector<std::unique_ptr<async::TaskGroup>> tasks;
  std::vector<std::shared_ptr<sched::StepParticipant>> steps;

  explicit Heads(int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      threads.push_back(std::make_unique<async::IoThread>(fmt::format("head {}", i)));
      tasks.push_back(std::make_unique<async::TaskGroup>(threads.back()->runtime()));
    }
    steps.resize(threads.size());
  }
  ~Heads() {
    on(0, [this] { steps[0]->leave("the end"); });
    for (const auto& thread : threads) thread->join();
  }
  /// Runs `work` on a head's thread and waits for it.
  template <class Work>
  void on(size_t head, const Work& work) {
    std::promise<void> done;
    asio::post(threads[head]->context(), [&] {
      work();
      done.set_value();
    });
    done.get_future().get();
  }
};

asio::awaitable<void> join_epoch(Heads& heads, sched::StepEpochs& epochs, uint32_t ring, std::promise<void>& joined) {
  auto membership = co_await epochs.join(ring, heads.threads[ring]->runtime(), {});
  heads.steps[ring] = std::make_shared<sched::StepParticipant>(std::move(membership.board));
  joined.set_value();
}

/// Lets each head join the epoch of its process.
void join_all(Heads& heads, const std::vector<sched::StepEpochs*>& epochs) {
  std::vector<std::promise<void>> joined(heads.threads.size());
  for (uint32_t ring = 0; ring < heads.threads.size(); ++ring) {
    asio::post(heads.threads[ring]->context(),
               [&, ring] { heads.tasks[ring]->spawn("join", join_epoch(heads, *epochs[ring], ring, joined[ring])); });
  }
  for (auto& each : joined) each.get_future().get();
}

/// Notes when a head has received a new target.
asio::awaitable<void> follow(std::shared_ptr<sched::StepParticipant> steps, std::atomic<uint64_t>& news) {
  try {
    for (;;) {
      co_await steps->wait_for_target();
      ++news;
    }
  } catch (const std::exception&) {
    co_return;  // the epoch has ended
  }
}

/// Measures the coordinator's part of the steps of a ring that works, and the time until an idle head has woken.
void measure_coordinator(Heads& heads, const StepBenchOptions& options, const char* name) {
  std::atomic<uint64_t> news = 0;
  asio::post(heads.threads[1]->context(), [&] { heads.tasks[1]->spawn("follow", follow(heads.steps[1], news)); });
  std::atomic<uint64_t> own_news = 0;
  asio::post(heads.threads[0]->context(), [&] { heads.tasks[0]->spawn("follow", follow(heads.steps[0], own_news)); });
  std::vector<double> step_us;
  std::vector<double> wake_us;
  for (size_t round = 0; round < options.rounds; ++round) {
    heads.on(0, [&] {
      const auto start = Clock::now();
      for (int64_t i = 0; i < options.steps; ++i) (void)heads.steps[0]->begin_step();
      step_us.push_back(us_since(start) / static_cast<double>(options.steps));
    });
    for (int wakes = 0; wakes < 50; ++wakes) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      heads.on(0, [&] {
        while (heads.steps[0]->behind()) (void)heads.steps[0]->begin_step();
      });
      const uint64_t before = news;
      const auto start = Clock::now();
      heads.on(0, [&] { (void)heads.steps[0]->begin_step(); });
      while (news == before) std::this_thread::yield();
      wake_us.push_back(us_since(start));
    }
  }
  fmt::print("{:>9}: a step with its share of announcements {} us; an idle head has woken after {} us\n", name,
             summary(step_us), summary(wake_us));
  heads.on(0, [&] { heads.steps[0]->leave("the end"); });
  for (size_t ring : {size_t{0}, size_t{1}}) {
    while (true) {
      size_t left = 0;
      heads.on(ring, [&] { left = heads.tasks[ring]->size(); });
      if (left == 0) break;
    }
  }
}

void measure_word(const StepBenchOptions& options) {
  sched::StepGroup group(static_cast<uint32_t>(options.rings), options.lookahead);
  Heads heads(options.rings);
  join_all(heads, std::vector<sched::StepEpochs*>(heads.threads.size(), &group));
  measure_coordinator(heads, options, "word");
}

/// A ring in a process of its own. Messages travel between two threads, encoded as on the connection.
struct RemoteRing {
  RemoteRing(async::IoThread& front, sched::StepGroup& group, uint32_t ring, uint32_t rings)
      : steps(ring, rings, {}), server(front.runtime(), group, ring, "", to_ring()), serving(front.runtime()) {
    steps.attach("front", [this, &front](const sched::StepMessage& message) {
      asio::post(front.context(),
                 [this, bytes = sched::encode(message)] { server.handle(sched::decode_step_message(bytes).value()); });
    });
  }
  [[nodiscard]] sched::SendStepMessage to_ring() {
    return [this](const sched::StepMessage& message) {
      asio::post(link.context(),
                 [this, bytes = sched::encode(message)] { steps.handle(sched::decode_step_message(bytes).value()); });
    };
  }

  async::IoThread link{"front link"};
  sched::RemoteStepGroup steps;
  sched::StepServer server;
  async::TaskGroup serving;
};

void measure_messages(const StepBenchOptions& options) {
  const auto rings = static_cast<uint32_t>(options.rings);
  async::IoThread front("rings");
  sched::StepGroup group(rings, options.lookahead);
  std::vector<std::unique_ptr<RemoteRing>> elsewhere;
  std::vector<sched::StepEpochs*> epochs;
  for (uint32_t ring = 0; ring < rings; ++ring) {
    elsewhere.push_back(std::make_unique<RemoteRing>(front, group, ring, rings));
    epochs.push_back(&elsewhere.back()->steps);
  }
  {
    Heads heads(options.rings);
    join_all(heads, epochs);
    measure_coordinator(heads, options, "messages");
  }
  for (const auto& ring : elsewhere) {
    asio::post(front.context(), [&ring] { ring->serving.spawn("close", ring->server.close("the end")); });
  }
  front.join();
  for (const auto& ring : elsewhere) ring->link.join();
}

/// The rank of a ring that exchanges rows of zeros: the time of the exchange alone, without experts.
struct ExchangingRank {
  std::unique_ptr<tensor::Backend> backend;
  std::unique_ptr<tensor::ExpertExchange> end;
  tensor::Buffer x, logits, all_x, all_logits, all_sums, sums;
};

using MakeEnd = std::function<std::unique_ptr<tensor::ExpertExchange>(int32_t ring, tensor::Backend& backend)>;

std::vector<ExchangingRank> make_ranks(const StepBenchOptions& options, int64_t rows, const MakeEnd& make_end) {
  std::vector<ExchangingRank> ranks;
  const auto bytes = [](int64_t count, int64_t cols, size_t size) { return static_cast<size_t>(count * cols) * size; };
  for (int32_t ring = 0; ring < options.rings; ++ring) {
    ExchangingRank& rank = ranks.emplace_back();
    rank.backend = cpu::make_backend({.threads = options.threads});
    rank.end = make_end(ring, *rank.backend);
    rank.x = rank.backend->allocate(bytes(rows, options.hidden, 2));
    rank.logits = rank.backend->allocate(bytes(rows, options.experts, 4));
    rank.sums = rank.backend->allocate(bytes(rows, options.hidden, 4));
    rank.all_x = rank.backend->allocate(bytes(rows * options.rings, options.hidden, 2));
    rank.all_logits = rank.backend->allocate(bytes(rows * options.rings, options.experts, 4));
    rank.all_sums = rank.backend->allocate(bytes(rows * options.rings, options.hidden, 4));
  }
  return ranks;
}

MakeEnd ends_in_memory(const StepBenchOptions& options) {
  const auto shared = std::make_shared<comm::SharedExperts>(
      comm::SharedExperts::Shape{.ring_count = options.rings, .rank_count = 1, .stage_count = 1});
  return [shared](int32_t ring, tensor::Backend& backend) {
    return comm::SharedExperts::join(shared, 0, ring, 0, backend);
  };
}

asio::awaitable<void> connect_ring(async::Runtime& runtime, comm::TcpListener& listener,
                                   comm::TcpExpertsOptions options, std::shared_ptr<comm::TcpExperts>& ring) {
  const async::Event done(runtime);
  auto connected = co_await comm::TcpExperts::connect(runtime, listener, std::move(options), {}, done,
                                                      runtime.now() + std::chrono::seconds(10));
  ring = std::move(connected).value();
}

/// Connects the rings over loopback.
MakeEnd ends_over_tcp(const StepBenchOptions& options) {
  asio::io_context context(1);
  async::RealRuntime runtime(context);
  std::vector<std::unique_ptr<comm::TcpListener>> listeners;
  comm::TcpExpertsOptions experts{.shape = {.ring_count = options.rings, .rank_count = 1, .stage_count = 1},
                                  .ring = 0,
                                  .here = {},
                                  .epoch = {.number = 1, .endpoints = {}},
                                  .sockets = {}};
  for (int32_t ring = 0; ring < options.rings; ++ring) {
    listeners.push_back(comm::TcpListener::open(runtime, {"127.0.0.1", 0}).value());
    experts.epoch.endpoints.push_back({listeners.back()->endpoint()});
  }
  std::vector<std::shared_ptr<comm::TcpExperts>> rings(listeners.size());
  async::TaskGroup tasks(runtime);
  for (size_t ring = 0; ring < rings.size(); ++ring) {
    experts.ring = static_cast<int32_t>(ring);
    tasks.spawn("connect", connect_ring(runtime, *listeners[ring], experts, rings[ring]));
  }
  while (tasks.size() > 0) (void)context.run_one();
  for (const auto& listener : listeners) listener->close();
  context.run();
  return [rings](int32_t ring, tensor::Backend& backend) {
    return comm::TcpExperts::join(rings[static_cast<size_t>(ring)], 0, 0, backend);
  };
}

/// Runs steps on all ranks at once. Returns the microseconds of one.
double time_steps(const StepBenchOptions& options, std::vector<ExchangingRank>& ranks, int64_t rows, int64_t steps,
                  uint64_t& step) {
  const auto start = Clock::now();
  std::vector<std::promise<void>> done(ranks.size());
  for (size_t ring = 0; ring < ranks.size(); ++ring) {
    ExchangingRank& rank = ranks[ring];
    rank.backend->submit(
        [&, ring] {
          const int64_t own = ring == 0 ? rows : 0;  // the other rings are idle
          const auto matrix = [](tensor::Buffer& buffer, DType dtype, int64_t count, int64_t cols) {
            return Matrix{.data = buffer.data(), .dtype = dtype, .rows = count, .cols = cols};
          };
          for (int64_t i = 0; i < steps; ++i) {
            if (!rank.end->begin_step(step + static_cast<uint64_t>(i) + 1, own > 0)) continue;
            for (int32_t layer = 0; layer < options.layers; ++layer) {
              (void)rank.end->dispatch(matrix(rank.x, DType::kBF16, own, options.hidden),
                                       matrix(rank.logits, DType::kF32, own, options.experts),
                                       matrix(rank.all_x, DType::kBF16, rows, options.hidden),
                                       matrix(rank.all_logits, DType::kF32, rows, options.experts));
              rank.end->combine(matrix(rank.all_sums, DType::kF32, rows, options.hidden),
                                matrix(rank.sums, DType::kF32, own, options.hidden));
            }
          }
        },
        [&done, ring](std::exception_ptr) { done[ring].set_value(); });
  }
  for (auto& each : done) each.get_future().get();
  step += static_cast<uint64_t>(steps);
  return us_since(start) / static_cast<double>(steps);
}

void measure_exchange(const StepBenchOptions& options, const char* name,
                      MakeEnd (*make_ends)(const StepBenchOptions& options)) {
  std::vector<double> empty_us;
  uint64_t step = 0;
  std::vector<ExchangingRank> ranks = make_ranks(options, 1, make_ends(options));
  for (size_t round = 0; round < options.rounds; ++round) {
    empty_us.push_back(time_steps(options, ranks, 0, options.steps, step));
  }
  const double median = [&] {
    auto sorted = empty_us;
    std::ranges::sort(sorted);
    return sorted[sorted.size() / 2];
  }();
  fmt::print("\nper stage of {} rings with {} threads each, {}\n", options.rings, options.threads, name);
  fmt::print("a step without rows of any ring: {} us; the {} steps of the look-ahead take {:.0f} us\n",
             summary(empty_us), options.lookahead, median * static_cast<double>(options.lookahead));
  for (const int64_t rows : options.rows) {
    std::vector<ExchangingRank> with_rows = make_ranks(options, rows, make_ends(options));
    std::vector<double> us;
    uint64_t number = 0;
    const int64_t steps = std::max<int64_t>(2, options.steps / (options.layers * (1 + rows)));
    for (size_t round = 0; round < options.rounds; ++round) {
      us.push_back(time_steps(options, with_rows, rows, steps, number) / options.layers);
    }
    fmt::print("exchange of {} rows of one ring, others idle, per layer, without the experts: {} us\n", rows,
               summary(us));
  }
}

}  // namespace

int main(int argc, char** argv) {
  StepBenchOptions options;
  CLI::App app("Measures what stepping together costs rings that share experts: median [least, most] of all rounds.");
  app.add_option("--rings", options.rings, "rings, at least 2")->check(CLI::IsMember({2, 4, 8}));
  app.add_option("--layers", options.layers, "sparse layers of a stage");
  app.add_option("--threads", options.threads, "threads of each rank");
  app.add_option("--hidden", options.hidden, "width of a row");
  app.add_option("--experts", options.experts, "experts of a layer");
  app.add_option("--rows", options.rows, "rows of the ring that works");
  app.add_option("--rounds", options.rounds, "measurements of each figure");
  app.add_option("--steps", options.steps, "steps of a measurement");
  app.add_option("--lookahead", options.lookahead, "--dp-step-lookahead");
  CLI11_PARSE(app, argc, argv);
  measure_word(options);
  measure_messages(options);
  measure_exchange(options, "in memory", ends_in_memory);
  measure_exchange(options, "over TCP on loopback", ends_over_tcp);
  return 0;
}
