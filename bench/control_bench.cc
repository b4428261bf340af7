#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <future>
#include <vector>

#include "async/real_runtime.h"
#include "async/task_group.h"
#include "base/check.h"
#include "base/log.h"
#include "comm/in_process_link.h"
#include "comm/tcp_link.h"
#include "sched/plan/plan.h"
#include "sched/plan/plan_output.h"
#include "sched/stage/local_stages.h"
#include "sched/stage/stage_runner.h"

/// How long a plan without work takes from the head through idle stages, a thread each, and back as an output: what
/// the control path adds to a micro-batch. Within a process and over TCP on loopback by turns, next to one stage.
namespace {

using namespace millrace;
using Clock = std::chrono::steady_clock;

constexpr RingEpoch kEpoch{1};
constexpr size_t kWindow = 2;
constexpr sched::StageBounds kBounds{
    .slot_count = 1, .page_size = 16, .page_count = 1, .max_batch_tokens = 1, .vocab_size = 2};

/// Stages that no plan with work ever reaches.
class IdleRunner final : public sched::StageRunner {
 public:
  [[nodiscard]] size_t output_row_bytes() const override { return 0; }
  [[nodiscard]] size_t input_row_bytes() const override { return 0; }
  asio::awaitable<Result> run(const sched::StageBatch&, std::span<const std::byte>) override {
    CHECK(false, "an idle stage was given work");
    co_return Result{};
  }
};

/// A thread with its TCP links.
struct Host {
  explicit Host(const std::string& name) : thread(name) {}
  async::IoThread thread;
  comm::TcpLinkGroup links{thread.runtime()};
};

class IdleRing {
 public:
  IdleRing(uint32_t stage_count, bool over_tcp);
  ~IdleRing();
  /// Mean of `count` plans, one after another.
  [[nodiscard]] double microseconds_per_plan(size_t count);

 private:
  [[nodiscard]] asio::awaitable<void> start(bool over_tcp);
  [[nodiscard]] asio::awaitable<comm::Link> make_link(Host& from, Host& to, uint32_t number, bool over_tcp);
  [[nodiscard]] asio::awaitable<void> accept_into(Host& host, comm::LinkHello hello,
                                                  std::unique_ptr<comm::LinkReceiver>& receiver);
  [[nodiscard]] asio::awaitable<void> send_plans(size_t count);
  [[nodiscard]] asio::awaitable<void> stop();
  static comm::TcpLinkOptions link_options();
  void run_on_head(asio::awaitable<void> task);

  Host head_{"head"};
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<sched::LocalStages>> stages_;
  std::unique_ptr<comm::TcpListener> listener_;
  comm::Link ends_;  // the head's: to the first stage, from the last
  async::TaskGroup tasks_{head_.thread.runtime()};
  uint64_t next_plan_ = 0;
};

IdleRing::IdleRing(uint32_t stage_count, bool over_tcp) {
  const sched::RingConfig shape{.stage_count = stage_count, .window = kWindow, .bounds = kBounds};
  const sched::LocalStages::RunnerFactory runner = [](async::Runtime&) { return std::make_unique<IdleRunner>(); };
  for (uint32_t i = 0; i < stage_count; ++i) {
    hosts_.push_back(std::make_unique<Host>(fmt::format("stage {}", i)));
    stages_.push_back(std::make_unique<sched::LocalStages>(
        head_.thread.runtime(), std::vector{&hosts_.back()->thread.runtime()}, std::vector{runner}, StageId(i), shape));
  }
  listener_ = comm::TcpListener::open(head_.thread.runtime(), {"127.0.0.1", 0}).value();
  run_on_head(start(over_tcp));
}

IdleRing::~IdleRing() {
  run_on_head(stop());
  head_.thread.join();
  for (const auto& host : hosts_) host->thread.join();
}

void IdleRing::run_on_head(asio::awaitable<void> task) {
  std::promise<void> done;
  auto whole = [](asio::awaitable<void> part, std::promise<void>& finished) -> asio::awaitable<void> {
    co_await std::move(part);
    finished.set_value();
  };
  asio::post(head_.thread.context(), [&] { tasks_.spawn("bench", whole(std::move(task), done)); });
  done.get_future().get();
}

comm::TcpLinkOptions IdleRing::link_options() {
  comm::TcpLinkOptions options;
  options.window = kWindow + 1;
  options.silence = std::chrono::seconds(10);
  return options;
}

asio::awaitable<void> IdleRing::accept_into(Host& host, comm::LinkHello hello,
                                            std::unique_ptr<comm::LinkReceiver>& receiver) {
  auto accepted = co_await listener_->accept_link(host.links, hello, link_options(),
                                                  head_.thread.runtime().now() + std::chrono::seconds(10));
  receiver = std::move(accepted.value());
}

asio::awaitable<comm::Link> IdleRing::make_link(Host& from, Host& to, uint32_t number, bool over_tcp) {
  async::Runtime& here = head_.thread.runtime();
  if (!over_tcp) co_return comm::make_in_process_link(from.thread.runtime(), to.thread.runtime(), kWindow + 1);
  comm::LinkHello hello;
  hello.ring = number + 1;
  hello.epoch = kEpoch;
  comm::Link link;
  async::TaskGroup accepting(here);
  accepting.spawn("accept", accept_into(to, hello, link.receiver));
  auto sender = co_await comm::connect_link(here, from.links, listener_->endpoint(), hello, link_options(),
                                            here.now() + std::chrono::seconds(10));
  co_await accepting.join();
  link.sender = std::move(sender.value());
  co_return link;
}

asio::awaitable<void> IdleRing::start(bool over_tcp) {
  std::vector<comm::Link> links;  // into stage 0, 1, …, and into the head
  for (size_t i = 0; i <= hosts_.size(); ++i) {
    Host& from = i == 0 ? head_ : *hosts_[i - 1];
    Host& to = i == hosts_.size() ? head_ : *hosts_[i];
    comm::Link link = co_await make_link(from, to, static_cast<uint32_t>(i), over_tcp);
    links.push_back(std::move(link));
  }
  for (size_t i = 0; i < stages_.size(); ++i) {
    stages_[i]->start(std::move(links[i].receiver), std::move(links[i + 1].sender));
  }
  ends_ = {std::move(links.front().sender), std::move(links.back().receiver)};
}

asio::awaitable<void> IdleRing::send_plans(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    sched::Plan plan;
    plan.id = PlanId(next_plan_++);
    plan.epoch = kEpoch;
    ends_.sender->send(comm::MessageKind::kPlan, kEpoch, plan.id, plan.encode());
    const comm::Message message = co_await ends_.receiver->receive(comm::MessageKind::kOutput);
    CHECK(sched::PlanOutput::decode(message.payload.bytes()).value().id == plan.id);
  }
}

double IdleRing::microseconds_per_plan(size_t count) {
  const auto begin = Clock::now();
  run_on_head(send_plans(count));
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / static_cast<double>(count);
}

asio::awaitable<void> IdleRing::stop() {
  for (const auto& stages : stages_) stages->stop("the bench is over");
  for (const auto& stages : stages_) co_await stages->join();
  ends_ = {};
  co_await listener_->shutdown();
}

std::string spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return fmt::format("{:8.1f} [{:.1f}, {:.1f}]", values[values.size() / 2], values.front(), values.back());
}

}  // namespace

int main(int argc, char** argv) {
  uint32_t stage_count = 8;
  size_t plan_count = 500;
  size_t rounds = 7;
  CLI::App app("control_bench: how long an empty plan takes from the head through idle stages and back, us.");
  app.add_option("--stages", stage_count, "stages, a thread each")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--plans", plan_count, "plans per round, one after another")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--rounds", rounds, "rounds, after one that does not count")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  log::configure(log::Level::kError, false);

  struct Figures {
    std::string name;
    std::unique_ptr<IdleRing> ring;
    std::vector<double> values;
  };
  std::vector<Figures> all;
  all.push_back({"1 stage, in process", std::make_unique<IdleRing>(1, false), {}});
  all.push_back(
      {fmt::format("{} stages, in process", stage_count), std::make_unique<IdleRing>(stage_count, false), {}});
  all.push_back({fmt::format("{} stages, TCP", stage_count), std::make_unique<IdleRing>(stage_count, true), {}});
  for (size_t round = 0; round <= rounds; ++round) {
    for (Figures& each : all) {
      const double value = each.ring->microseconds_per_plan(plan_count);
      if (round > 0) each.values.push_back(value);
    }
  }
  for (const Figures& each : all) fmt::print("{:>22}: {} us\n", each.name, spread(each.values));
  fmt::print("medians [least, most] of {} rounds of {} plans\n", rounds, plan_count);
  return 0;
}
