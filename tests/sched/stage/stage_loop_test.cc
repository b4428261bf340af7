#include "sched/plan/plan_output.h"
#include "sched/plan/stage_report.h"
#include "sched/stage/stage_bounds.h"
#include "sched/stage/stage_loop.h"

#include <array>
#include <catch2/catch.hpp>
#include <stdexcept>

#include "async/virtual_runtime.h"
#include "comm/in_process_link.h"

using namespace millrace;
using namespace millrace::sched;
using namespace std::chrono_literals;
using cache::CopyId;
using cache::CopyKind;
using comm::MessageKind;

namespace {

constexpr StageBounds kBounds{
    .slot_count = 2, .page_size = 4, .page_count = 8, .max_batch_tokens = 8, .vocab_size = 100, .host_page_count = 4};

/// Loads fail, and runs that are told of one.
class FailingLoads final : public StageRunner {
 public:
  explicit FailingLoads(async::Runtime& runtime) : runtime_(runtime) {}
  [[nodiscard]] size_t output_row_bytes() const override { return 0; }
  [[nodiscard]] size_t input_row_bytes() const override { return 0; }
  [[nodiscard]] asio::awaitable<Result> run(const StageBatch& batch, std::span<const std::byte>) override {
    if (std::exchange(failed_, false)) throw std::runtime_error("a page was not loaded");
    Result result;
    result.outputs.resize(batch.slices.size());
    co_return result;
  }
  [[nodiscard]] async::Event begin_load(std::vector<cache::PageCopy>) override {
    failed_ = true;
    const async::Event loaded(runtime_);
    loaded.set(std::make_exception_ptr(std::runtime_error("the copy has failed")));
    return loaded;
  }
  void drop_loads() override { failed_ = false; }

 private:
  async::Runtime& runtime_;
  bool failed_ = false;
};

Plan prompt_of_one(uint64_t id) {
  Plan plan;
  plan.id = PlanId(id);
  plan.opens = {{.slot = SlotId(0), .prompt_length = 1}};
  plan.slices = {{.slot = SlotId(0), .token_count = 1, .new_page_count = 1, .sample = true}};
  plan.tokens = {5};
  plan.new_pages = {PageId(2)};
  plan.digest = plan_digest(0, plan.slices.front(), table_digest(0, PageId(2)));
  return plan;
}

asio::awaitable<void> run_loop(StageLoop& loop) {
  co_await loop.run();
}

StageLinks links(comm::Link& in, comm::Link& out) {
  StageLinks links;
  links.upstream = std::move(in.receiver);
  links.downstream = std::move(out.sender);
  return links;
}

/// The first of several stages, whose activations lie in buffers that take turns.
class Buffered final : public StageRunner {
 public:
  explicit Buffered(size_t buffers) : buffers_(buffers) {}
  [[nodiscard]] size_t output_row_bytes() const override { return 1; }
  [[nodiscard]] size_t input_row_bytes() const override { return 0; }
  [[nodiscard]] size_t output_buffers() const override { return buffers_.size(); }
  [[nodiscard]] asio::awaitable<Result> run(const StageBatch&, std::span<const std::byte>) override {
    std::byte& buffer = buffers_[runs_++ % buffers_.size()];
    buffer = static_cast<std::byte>(runs_);
    Result result;
    result.activations = {&buffer, 1};
    co_return result;
  }
  [[nodiscard]] size_t runs() const { return runs_; }

 private:
  std::vector<std::byte> buffers_;
  size_t runs_ = 0;
};

/// A neighbour that takes one run's activations after another: how many runs there were before each.
asio::awaitable<void> run_ahead(async::Runtime& runtime, Buffered& runner, size_t plan_count,
                                std::vector<size_t>& runs) {
  comm::Link in = comm::make_in_process_link(runtime, runtime, plan_count + 1);
  comm::Link out = comm::make_in_process_link(runtime, runtime, plan_count + 1);
  const StageLoopOptions options{
      .stage = StageId(0), .first = true, .bounds = kBounds, .window = plan_count + 1, .watchdog = {}};
  StageLoop loop(runtime, options, runner, links(in, out));
  async::TaskGroup tasks(runtime);
  tasks.spawn("stage", run_loop(loop));
  for (uint64_t id = 0; id < plan_count; ++id) {
    Plan plan = prompt_of_one(id);
    if (id > 0) plan.closes = {SlotId(0)};
    in.sender->send(MessageKind::kPlan, plan.epoch, plan.id, plan.encode());
  }
  for (size_t taken = 0; taken < plan_count; ++taken) {
    co_await async::sleep_for(runtime, 1ms);
    runs.push_back(runner.runs());
    const comm::Message message = co_await out.receiver->receive(MessageKind::kActivations);
    CHECK(message.payload.bytes()[0] == static_cast<std::byte>(taken + 1));
  }
  loop.stop("enough");
  co_await tasks.join();
}

/// The only stage of a ring in one epoch of one plan: why it ends.
asio::awaitable<void> run_epoch(async::Runtime& runtime, StageRunner& runner, Plan plan, std::string& reason) {
  comm::Link in = comm::make_in_process_link(runtime, runtime, 4);
  comm::Link out = comm::make_in_process_link(runtime, runtime, 4);
  const StageLoopOptions options{.stage = StageId(0), .first = true, .last = true, .bounds = kBounds};
  StageLoop loop(runtime, options, runner, links(in, out));
  runner.host_tier().valid.assign(1, std::vector<bool>(kBounds.host_page_count, true));
  async::TaskGroup tasks(runtime);
  tasks.spawn("stage", run_loop(loop));
  in.sender->send(MessageKind::kPlan, plan.epoch, plan.id, plan.encode());
  const auto output = co_await comm::receive_until_closed(*out.receiver, MessageKind::kOutput);
  co_await async::sleep_for(runtime, 1ms);
  if (output) loop.stop("an output has come");
  co_await tasks.join();
  reason = loop.end_reason();
}

/// The only stage of a ring, which gets `plans`; whether it is busy after each.
asio::awaitable<void> watch_work(async::Runtime& runtime, std::vector<Plan> plans, std::vector<bool>& busy) {
  comm::Link in = comm::make_in_process_link(runtime, runtime, 4);
  comm::Link out = comm::make_in_process_link(runtime, runtime, 4);
  FailingLoads runner(runtime);
  std::atomic<bool> is_busy = false;
  const StageLoopOptions options{
      .stage = StageId(0), .first = true, .last = true, .bounds = kBounds, .window = 4, .busy = &is_busy};
  StageLoop loop(runtime, options, runner, links(in, out));
  async::TaskGroup tasks(runtime);
  tasks.spawn("stage", run_loop(loop));
  for (const Plan& plan : plans) {
    in.sender->send(MessageKind::kPlan, plan.epoch, plan.id, plan.encode());
    (void)co_await out.receiver->receive(MessageKind::kOutput);
    busy.push_back(is_busy);
  }
  loop.stop("enough");
  co_await tasks.join();
}

/// A runner whose runs last until they are let go.
class Patient final : public StageRunner {
 public:
  explicit Patient(async::Runtime& runtime) : runs_{async::Event(runtime), async::Event(runtime)} {}
  [[nodiscard]] size_t output_row_bytes() const override { return 0; }
  [[nodiscard]] size_t input_row_bytes() const override { return 0; }
  [[nodiscard]] asio::awaitable<Result> run(const StageBatch& batch, std::span<const std::byte>) override {
    co_await runs_.at(batch.plan.value()).wait();
    Result result;
    result.outputs.resize(batch.slices.size());
    co_return result;
  }
  void abort_exchanges(const std::string& reason) override { aborted_ = reason; }
  void let_go(uint64_t plan) { runs_.at(plan).set(); }
  [[nodiscard]] const std::string& aborted() const { return aborted_; }

 private:
  std::array<async::Event, 2> runs_;  // by plan
  std::string aborted_;
};

/// What the only other rank of a leader sees: a plan before the leader computes, and the leader's end after its own.
asio::awaitable<void> act_as_rank(async::Runtime& runtime, std::vector<StageReport>& reports, std::string& end) {
  comm::Link in = comm::make_in_process_link(runtime, runtime, 4);
  comm::Link out = comm::make_in_process_link(runtime, runtime, 4);
  comm::Link plans = comm::make_in_process_link(runtime, runtime, 4);
  comm::Link results = comm::make_in_process_link(runtime, runtime, 4);
  Patient runner(runtime);
  const StageLoopOptions options{
      .stage = StageId(0), .position = {.rank = 0, .size = 2}, .first = true, .last = true, .bounds = kBounds};
  StageLinks leader = links(in, out);
  leader.ranks.push_back({std::move(plans.sender), std::move(results.receiver)});
  StageLoop loop(runtime, options, runner, std::move(leader));
  async::TaskGroup tasks(runtime);
  tasks.spawn("stage", run_loop(loop));
  for (uint64_t id = 0; id < 2; ++id) {
    Plan plan = prompt_of_one(id);
    if (id > 0) plan.closes = {SlotId(0)};
    in.sender->send(MessageKind::kPlan, plan.epoch, plan.id, plan.encode());
    const comm::Message passed_on = co_await plans.receiver->receive(MessageKind::kPlan);
    runner.let_go(id);
    CHECK(Plan::decode(passed_on.payload.bytes())->tokens == plan.tokens);
    PlanOutput done;
    done.id = plan.id;
    done.reports = {{.stage = StageId(0), .plan = plan.id, .rank = 1}};
    results.sender->send(MessageKind::kOutput, plan.epoch, plan.id, done.encode());
    const comm::Message output = co_await out.receiver->receive(MessageKind::kOutput);
    const auto decoded = PlanOutput::decode(output.payload.bytes());
    reports.insert(reports.end(), decoded->reports.begin(), decoded->reports.end());
    co_await async::sleep_for(runtime, 1ms);
  }
  results.sender->close("stage 0 rank 1: out of memory");
  co_await tasks.join();
  CHECK(runner.aborted() == "stage 0 rank 1: out of memory");
  try {
    (void)co_await plans.receiver->receive(MessageKind::kPlan);
  } catch (const ErrorException& closed) {
    end = closed.what();
  }
}

}  // namespace

TEST_CASE("a leader passes plans on before it computes") {
  async::VirtualWorld world(1);
  async::Runtime& runtime = world.add_thread();
  async::TaskGroup tasks(runtime);
  std::vector<StageReport> reports;
  std::string end;
  tasks.spawn("rank", act_as_rank(runtime, reports, end));
  world.run();
  // Its own reports of both plans, and the rank's of the first, which rides with the second.
  REQUIRE(reports.size() == 3);
  REQUIRE(std::ranges::count(reports, 1U, &StageReport::rank) == 1);
  REQUIRE(end == "stage 0 rank 1: out of memory");
}

TEST_CASE("a stage runs ahead by as many plans as it has buffers") {
  for (const size_t buffers : {size_t{2}, size_t{4}}) {
    async::VirtualWorld world(1);
    async::Runtime& runtime = world.add_thread();
    async::TaskGroup tasks(runtime);
    Buffered runner(buffers);
    std::vector<size_t> runs;
    tasks.spawn("neighbour", run_ahead(runtime, runner, 6, runs));
    world.run();
    std::vector<size_t> wanted;
    for (size_t taken = 0; taken < 6; ++taken) wanted.push_back(std::min<size_t>(taken + buffers, 6));
    REQUIRE(runs == wanted);
  }
}

TEST_CASE("a load that fails ends its epoch and none after it") {
  async::VirtualWorld world(1);
  async::Runtime& runtime = world.add_thread();
  async::TaskGroup tasks(runtime);
  FailingLoads runner(runtime);
  const auto end_of = [&](const Plan& plan) {
    std::string reason;
    tasks.spawn("epoch", run_epoch(runtime, runner, plan, reason));
    world.run();
    return reason;
  };
  Plan load;
  load.id = PlanId(1);
  load.copies = {{.id = CopyId(1), .kind = CopyKind::kLoad, .device = {PageId(1)}, .host = {HostPageId(3)}}};
  REQUIRE(end_of(load) == "the copy has failed");
  REQUIRE(end_of(prompt_of_one(2)) == "an output has come");

  Plan both = prompt_of_one(3);
  both.copies = load.copies;
  const std::string reason = end_of(both);
  REQUIRE((reason == "the copy has failed" || reason == "a page was not loaded"));
  REQUIRE(end_of(prompt_of_one(4)) == "an output has come");
}

TEST_CASE("a stage is busy until no slot is open and no work comes") {
  async::VirtualWorld world(1);
  async::Runtime& runtime = world.add_thread();
  async::TaskGroup tasks(runtime);
  Plan heartbeat;  // as in a pause, in which the request stands still
  heartbeat.id = PlanId(2);
  Plan close;
  close.id = PlanId(3);
  close.closes = {SlotId(0)};
  Plan verify;
  verify.id = PlanId(4);
  verify.copies = {{.id = CopyId(1), .kind = CopyKind::kVerify}};
  std::vector<bool> busy;
  tasks.spawn("epoch", watch_work(runtime, {prompt_of_one(1), heartbeat, close, verify}, busy));
  world.run();
  REQUIRE(busy == std::vector{true, true, false, true});
}
