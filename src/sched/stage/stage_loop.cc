#include "sched/stage/stage_loop.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "sched/stage/rank_name.h"

namespace millrace::sched {
namespace {

/// Reports that wait for the next plan. A rank makes one per plan, so more means a head that has stopped.
constexpr size_t kMaxUnsentReports = 1024;

/// Clocks of a leader and a rank that differ by less count as one.
constexpr int64_t kClockToleranceNs = 1'000'000;

void shift(StageReport& report, int64_t ns) {
  for (int64_t* const time : {&report.plan_ns, &report.input_ns, &report.begin_ns, &report.end_ns}) *time += ns;
}

/// Returns how many others send acks to a rank.
size_t ack_source_count(const StageLoopOptions& options) {
  if (!options.is_leader()) return 0;
  return static_cast<size_t>(options.position.size - 1) + (options.first ? 0 : 1);
}

}  // namespace

StageLoop::StageLoop(async::Runtime& runtime, StageLoopOptions options, StageRunner& runner, StageLinks links)
    : runtime_(runtime),
      options_(options),
      runner_(runner),
      links_(std::move(links)),
      inputs_(links_.upstream ? *links_.upstream : *links_.from_leader, runner, options.bounds),
      table_(options.bounds, options.samples()),
      tasks_(runtime, [this](const std::string&, std::exception_ptr error) { fail(async::describe(error)); }),
      acks_(runtime, ack_source_count(options)),
      copies_(runtime, runner, tasks_, acks_, options.bounds),
      watchdog_(runtime, rank_name(options.stage, options.position), options.watchdog,
                [this](const std::string& reason) { fail(reason); }),
      batch_queue_(runtime, options.window) {
  const bool reads_device = links_.downstream && links_.downstream->reads_device();
  runner_.set_output_memory(reads_device ? StageRunner::Memory::kDevice : StageRunner::Memory::kHost);
}

asio::awaitable<void> StageLoop::run() {
  tasks_.spawn("receive plans", receive_plans());
  tasks_.spawn("execute plans", execute_plans());
  tasks_.spawn("send acks", send_acks());
  for (size_t i = 0; i < links_.ranks.size(); ++i) {
    tasks_.spawn("receive acks", receive_acks(i, *links_.ranks[i].receiver));
    tasks_.spawn("receive reports", receive_reports(*links_.ranks[i].receiver));
  }
  if (!options_.first && options_.is_leader()) {
    tasks_.spawn("receive acks", receive_acks(links_.ranks.size(), *links_.upstream));
  }
  co_await tasks_.join();
  runner_.drop_loads();
}

async::TimePoint StageLoop::arrival_of(const comm::Message& message) const {
  return message.arrived == async::TimePoint{} ? runtime_.now() : message.arrived;
}

void StageLoop::fail(const std::string& reason) {
  if (end_reason_.empty()) end_reason_ = reason;
  batch_queue_.close();
  copies_.stop();
  acks_.stop();
  runner_.abort_exchanges(reason);
  links_.close(reason);
}

asio::awaitable<void> StageLoop::receive_plans() {
  for (;;) {
    const comm::Message message = co_await links_.plans().receive(comm::MessageKind::kPlan);
    const async::TimePoint arrived = arrival_of(message);
    auto plan = Plan::decode(message.payload.bytes());
    if (plan.has_error()) throw ErrorException(plan.error());
    std::vector<StageReport>& reports = plan->reports;
    reports.insert(reports.end(), unsent_reports_.begin(), unsent_reports_.end());
    unsent_reports_.clear();
    const auto usable = table_.check(*plan);
    if (usable.has_error()) throw ErrorException(usable.error());
    if (!plan->slices.empty() || plan->step > 0) inputs_.expect(*plan);
    open_slots_ += plan->opens.size();
    open_slots_ -= plan->closes.size();
    // The head sends a plan without slices and copies only when no other is in flight. Its requests may stand still, as
    // in a pause: their slots are open.
    const bool has_work = !plan->slices.empty() || !plan->copies.empty() || plan->step > 0;
    if (options_.busy != nullptr) *options_.busy = has_work || open_slots_ > 0;
    copies_.start(plan->copies);
    epoch_ = plan->epoch;
    pass_on(*plan);
    const bool queued = co_await batch_queue_.send({std::move(*plan), arrived});
    if (!queued) co_return;
  }
}

/// Sends a plan to the other ranks and to the next stage.
void StageLoop::pass_on(const Plan& plan) {
  const bool has_next = options_.is_leader() && !options_.last;
  if (links_.ranks.empty() && !has_next) return;
  std::vector<std::byte> bytes = plan.encode();
  for (const comm::Link& rank : links_.ranks) rank.sender->send(comm::MessageKind::kPlan, plan.epoch, plan.id, bytes);
  if (has_next) links_.downstream->send(comm::MessageKind::kPlan, plan.epoch, plan.id, std::move(bytes));
}

// receive_plans() and receive_reports() learn why the links end.
asio::awaitable<void> StageLoop::receive_acks(size_t source, comm::LinkReceiver& from) {
  for (;;) {
    const auto message = co_await comm::receive_until_closed(from, comm::MessageKind::kAcks);
    if (!message) co_return;
    const auto acks = decode_acks(message->payload.bytes());
    if (acks.has_error()) throw ErrorException(acks.error());
    acks_.add(source, *acks);
  }
}

asio::awaitable<void> StageLoop::receive_reports(comm::LinkReceiver& from_rank) {
  int64_t shortest_lag_ns = INT64_MAX;  // from a run's end on the rank's clock to its report here
  for (;;) {
    const comm::Message message = co_await from_rank.receive(comm::MessageKind::kOutput);
    auto output = PlanOutput::decode(message.payload.bytes());
    if (output.has_error()) throw ErrorException(output.error());
    for (StageReport& report : output->reports) {
      shortest_lag_ns = std::min(shortest_lag_ns, async::nanoseconds(arrival_of(message)) - report.end_ns);
      // A rank on another host has a clock of its own.
      if (std::abs(shortest_lag_ns) > kClockToleranceNs) shift(report, shortest_lag_ns);
      keep_report(report);
    }
  }
}

void StageLoop::keep_report(const StageReport& report) {
  if (unsent_reports_.size() < kMaxUnsentReports) unsent_reports_.push_back(report);
}

asio::awaitable<void> StageLoop::send_acks() {
  for (;;) {
    const std::vector<cache::CopyAck> acks = co_await acks_.next();
    if (acks.empty()) co_return;
    links_.results().send(comm::MessageKind::kAcks, epoch_, PlanId(0), encode_acks(acks));
  }
}

asio::awaitable<void> StageLoop::execute_plans() {
  for (;;) {
    auto queued = co_await batch_queue_.receive();
    if (!queued) co_return;
    co_await execute(std::move(queued->plan), queued->arrived);
  }
}

asio::awaitable<void> StageLoop::execute(Plan plan, async::TimePoint arrived) {
  auto batch = table_.apply(plan);
  if (batch.has_error()) throw ErrorException(batch.error());
  batch->step = plan.step;
  copies_.load(plan.copies);
  if (plan.slices.empty()) {
    if (plan.step > 0) co_await step_without_rows(plan, arrived);
    copies_.store(plan.copies);
    if (options_.samples()) send_output(plan, {}, std::move(plan.reports));
    co_return;
  }
  StageReport report{.stage = options_.stage,
                     .plan = plan.id,
                     .plan_ns = async::nanoseconds(arrived),
                     .rank = static_cast<uint32_t>(options_.position.rank)};
  StageRunner::Result result = co_await run_batch(plan, *batch, arrived, report);
  copies_.store(plan.copies);
  report.end_ns = async::nanoseconds(runtime_.now());
  report.sent_bytes = result.activations.size();
  if (options_.samples()) {
    plan.reports.push_back(report);
    send_output(plan, std::move(result.outputs), std::move(plan.reports));
  } else if (options_.is_leader()) {
    keep_report(report);
  } else {
    send_output(plan, {}, {report});
  }
  if (!options_.last) co_await send_activations(plan, result.activations);
}

asio::awaitable<StageRunner::Result> StageLoop::run_batch(const Plan& plan, const StageBatch& batch,
                                                          async::TimePoint arrived, StageReport& report) {
  comm::Message input;
  if (!options_.first) input = co_await inputs_.receive(plan);
  report.input_ns = options_.first ? report.plan_ns : async::nanoseconds(arrival_of(input));
  const async::TimePoint begun = runtime_.now();
  report.begin_ns = async::nanoseconds(begun);
  watchdog_.begin({.plan = plan.id, .arrived = arrived, .begun = begun, .inputs_event = input.arrival});
  StageRunner::Result result = co_await run_named(batch, input.payload.bytes());
  if (input.arrival) {
    // The device ran after their arrival. If they never arrived, this throws, and the result means nothing.
    co_await input.arrival->event.wait();
    report.input_ns = async::nanoseconds(input.arrival->at);
    report.begin_ns = std::max(report.begin_ns, report.input_ns);
  }
  watchdog_.end();
  input = {};
  inputs_.release();
  co_return result;
}

/// Takes part in a step of the rings that share experts, for which this ring has no rows. Messages without bytes keep
/// the stages in order: the last stage's output says that all have ended the plan, as with rows. Otherwise plans would
/// pile up before a stage that waits for other rings.
asio::awaitable<void> StageLoop::step_without_rows(const Plan& plan, async::TimePoint arrived) {
  if (!options_.first) {
    (void)co_await inputs_.receive(plan);
    inputs_.release();
  }
  watchdog_.begin({.plan = plan.id, .arrived = arrived, .begun = runtime_.now(), .inputs_event = nullptr});
  co_await runner_.step_without_rows(plan.step);
  watchdog_.end();
  if (!options_.last) co_await send_activations(plan, {});
}

/// Runs a batch. What a rank of several throws says which one, unless it is another's reason.
asio::awaitable<StageRunner::Result> StageLoop::run_named(const StageBatch& batch, std::span<const std::byte> input) {
  std::string failure;
  try {
    co_return co_await runner_.run(batch, input);
  } catch (const tensor::CollectiveAborted&) {
    throw;
  } catch (const std::exception& error) {
    if (options_.position.size == 1) throw;
    failure = error.what();
  }
  throw ErrorException(
      make_error(ErrorCode::kInternal, "{}: {}", rank_name(options_.stage, options_.position), failure));
}

asio::awaitable<void> StageLoop::send_activations(const Plan& plan, std::span<const std::byte> activations) {
  sends_.push_back(links_.downstream->send_borrowed(comm::MessageKind::kActivations, plan.epoch, plan.id, activations));
  // The next run writes to the oldest of the runner's buffers.
  if (sends_.size() < runner_.output_buffers()) co_return;
  comm::Work oldest = std::move(sends_.front());
  sends_.pop_front();
  co_await oldest.commit();
}

void StageLoop::send_output(const Plan& plan, std::vector<SliceOutput> slices, std::vector<StageReport> reports) {
  PlanOutput output;
  output.id = plan.id;
  output.epoch = plan.epoch;
  output.slices = std::move(slices);
  output.reports = std::move(reports);
  links_.results().send(comm::MessageKind::kOutput, plan.epoch, plan.id, output.encode());
}

}  // namespace millrace::sched
