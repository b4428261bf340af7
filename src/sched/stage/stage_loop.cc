#include "sched/stage/stage_loop.h"

#include <algorithm>
#include <utility>

namespace millrace::sched {
namespace {

/// Reports that wait for the next plan. A stage makes one per plan, so more means a head that has stopped.
constexpr size_t kMaxUnsentReports = 1024;

}  // namespace

StageLoop::StageLoop(async::Runtime& runtime, StageLoopOptions options, StageRunner& runner,
                     std::unique_ptr<comm::LinkReceiver> upstream, std::unique_ptr<comm::LinkSender> downstream)
    : runtime_(runtime),
      options_(options),
      runner_(runner),
      upstream_(std::move(upstream)),
      downstream_(std::move(downstream)),
      inputs_(*upstream_, runner, options.bounds),
      table_(options.bounds, options.last),
      tasks_(runtime, [this](const std::string&, std::exception_ptr error) { fail(async::describe(error)); }),
      acks_(runtime, options.first),
      copies_(runtime, runner, tasks_, acks_, options.bounds.host_page_count),
      watchdog_(runtime, options.stage, options.watchdog, [this](const std::string& reason) { fail(reason); }),
      batch_queue_(runtime, options.window) {
  runner_.set_output_memory(downstream_->reads_device() ? StageRunner::Memory::kDevice : StageRunner::Memory::kHost);
}

asio::awaitable<void> StageLoop::run() {
  tasks_.spawn("receive plans", receive_plans());
  tasks_.spawn("execute plans", execute_plans());
  tasks_.spawn("send acks", send_acks());
  if (!options_.first) tasks_.spawn("receive acks", receive_acks());
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
  upstream_->close(reason);
  downstream_->close(reason);
}

asio::awaitable<void> StageLoop::receive_plans() {
  for (;;) {
    const comm::Message message = co_await upstream_->receive(comm::MessageKind::kPlan);
    const async::TimePoint arrived = arrival_of(message);
    auto plan = Plan::decode(message.payload.bytes());
    if (plan.has_error()) throw ErrorException(plan.error());
    std::vector<StageReport>& reports = plan->reports;
    reports.insert(reports.end(), unsent_reports_.begin(), unsent_reports_.end());
    unsent_reports_.clear();
    const auto usable = table_.check(*plan);
    if (usable.has_error()) throw ErrorException(usable.error());
    if (!plan->slices.empty()) inputs_.expect(*plan);
    // The head sends a plan without slices and copies only when no other is in flight.
    if (options_.busy != nullptr) *options_.busy = !plan->slices.empty() || !plan->copies.empty();
    copies_.start(plan->copies);
    epoch_ = plan->epoch;
    if (!options_.last) downstream_->send(comm::MessageKind::kPlan, plan->epoch, plan->id, plan->encode());
    const bool queued = co_await batch_queue_.send({std::move(*plan), arrived});
    if (!queued) co_return;
  }
}

// receive_plans() learns why the link ends.
asio::awaitable<void> StageLoop::receive_acks() {
  for (;;) {
    const auto message = co_await comm::receive_until_closed(*upstream_, comm::MessageKind::kAcks);
    if (!message) co_return;
    const auto acks = decode_acks(message->payload.bytes());
    if (acks.has_error()) throw ErrorException(acks.error());
    acks_.add_upstream(*acks);
  }
}

asio::awaitable<void> StageLoop::send_acks() {
  for (;;) {
    const std::vector<cache::CopyAck> acks = co_await acks_.next();
    if (acks.empty()) co_return;
    downstream_->send(comm::MessageKind::kAcks, epoch_, PlanId(0), encode_acks(acks));
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
  const auto batch = table_.apply(plan);
  if (batch.has_error()) throw ErrorException(batch.error());
  copies_.load(plan.copies);
  if (plan.slices.empty()) {
    copies_.store(plan.copies);
    if (options_.last) send_output(std::move(plan), {});
    co_return;
  }
  StageReport report{.stage = options_.stage, .plan = plan.id, .plan_ns = async::nanoseconds(arrived)};
  StageRunner::Result result = co_await run_batch(plan, *batch, arrived, report);
  copies_.store(plan.copies);
  report.end_ns = async::nanoseconds(runtime_.now());
  report.sent_bytes = result.activations.size();
  if (options_.last) {
    plan.reports.push_back(report);
    send_output(std::move(plan), std::move(result.outputs));
    co_return;
  }
  if (unsent_reports_.size() < kMaxUnsentReports) unsent_reports_.push_back(report);
  co_await send_activations(plan, result.activations);
}

asio::awaitable<StageRunner::Result> StageLoop::run_batch(const Plan& plan, const StageBatch& batch,
                                                          async::TimePoint arrived, StageReport& report) {
  comm::Message input;
  if (!options_.first) input = co_await inputs_.receive(plan);
  report.input_ns = options_.first ? report.plan_ns : async::nanoseconds(arrival_of(input));
  const async::TimePoint begun = runtime_.now();
  report.begin_ns = async::nanoseconds(begun);
  watchdog_.begin({.plan = plan.id, .arrived = arrived, .begun = begun, .inputs_event = input.arrival});
  StageRunner::Result result = co_await runner_.run(batch, input.payload.bytes());
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

asio::awaitable<void> StageLoop::send_activations(const Plan& plan, std::span<const std::byte> activations) {
  sends_.push_back(downstream_->send_borrowed(comm::MessageKind::kActivations, plan.epoch, plan.id, activations));
  // The next run writes to the oldest of the runner's buffers.
  if (sends_.size() < runner_.output_buffers()) co_return;
  comm::Work oldest = std::move(sends_.front());
  sends_.pop_front();
  co_await oldest.commit();
}

void StageLoop::send_output(Plan plan, std::vector<SliceOutput> slices) {
  PlanOutput output;
  output.id = plan.id;
  output.epoch = plan.epoch;
  output.slices = std::move(slices);
  output.reports = std::move(plan.reports);
  downstream_->send(comm::MessageKind::kOutput, plan.epoch, plan.id, output.encode());
}

}  // namespace millrace::sched
