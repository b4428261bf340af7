#include "sched/head/head.h"

#include <algorithm>
#include <limits>

#include "base/log.h"

namespace millrace::sched {
namespace {

double seconds(async::Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

/// Outputs between two tellings of what the cost model has learnt.
constexpr uint64_t kCostsInterval = 16;
/// A stage that is late with a plan says so itself at the watchdog's time; the head breaks the ring so much later.
constexpr async::Duration kWatchdogGrace = std::chrono::seconds(1);

}  // namespace

Head::Head(async::Runtime& runtime, HeadOptions options)
    : runtime_(runtime),
      options_(std::move(options)),
      // submit() bounds the submissions, and each stream sends one abort at most: no abort may be lost.
      controls_(runtime, std::numeric_limits<size_t>::max()),
      scheduler_(options_.scheduler),
      stats_(options_.model.stage_count, options_.scheduler.window),
      tasks_(runtime),
      wake_(runtime),
      broken_signal_(runtime) {
  status_.reason = "the ring has not formed yet";
  status_.total_pages = options_.scheduler.page_count;
  status_.page_size = options_.scheduler.page_size;
  status_.free_pages = options_.scheduler.page_count;
}

asio::awaitable<void> Head::run() {
  tasks_.spawn("head turns", run_turns());
  tasks_.spawn("head controls", receive_controls());
  co_await tasks_.join();
}

void Head::attach(RingEpoch epoch, std::unique_ptr<comm::LinkSender> to_first_stage,
                  std::unique_ptr<comm::LinkReceiver> from_last_stage) {
  CHECK(to_first_stage_ == nullptr, "a ring is attached already");
  if (stopping_) return;
  epoch_ = epoch;
  next_plan_ = PlanId(0);
  to_first_stage_ = std::move(to_first_stage);
  last_output_ = runtime_.now();
  profile_begin_ = last_output_;
  contention_profile_begin_.reset();
  const std::shared_ptr<comm::LinkReceiver> answers = std::move(from_last_stage);
  tasks_.spawn("head outputs", receive_outputs(epoch, answers));
  tasks_.spawn("head acks", receive_acks(epoch, answers));
  stats_.ring_attached(epoch, async::nanoseconds(last_output_));
  send(scheduler_.empty_plan(), last_output_);
  wake_.notify_all();
}

asio::awaitable<void> Head::wait_until_broken() {
  while (to_first_stage_ != nullptr) co_await broken_signal_.wait();
}

void Head::stop() {
  (void)controls_.try_push(Stop{});
}

EngineStatus Head::status() const {
  const std::lock_guard lock(mutex_);
  EngineStatus status = status_;
  status.waiting += unhandled_submissions_;
  return status;
}

asio::awaitable<void> Head::run_turns() {
  while (!stopping_) {
    if (options_.audit) check_clients();
    if (to_first_stage_ == nullptr) {
      co_await wait_for_ring();
      continue;
    }
    if (scheduler_.in_flight_plans() < options_.scheduler.window) {
      if (send_next_plan()) continue;
      if (scheduler_.copies_pending()) {
        send(scheduler_.empty_plan(), runtime_.now());
        continue;
      }
      stats_.starved();
    }
    (void)co_await wake_.wait_until(next_deadline());
    check_watchdog();
    expire_requests();
    send_heartbeat_if_due();
  }
}

// Who has ended is in neither, and nobody else is missing in one of them.
void Head::check_clients() const {
  const size_t known = scheduler_.running_count() + scheduler_.waiting_count();
  CHECK(clients_.size() == known, "{} clients wait for {} sequences", clients_.size(), known);
}

asio::awaitable<void> Head::wait_for_ring() {
  if (!needs_expiry_scan()) {
    co_await wake_.wait();
    co_return;
  }
  (void)co_await wake_.wait_until(last_expiry_ + kExpiryInterval);
  expire_requests();
}

bool Head::send_next_plan() {
  const async::TimePoint now = runtime_.now();
  auto plan = scheduler_.next();
  if (!plan) return false;
  for (const SequenceId id : scheduler_.newest_plan()) {
    Client& client = clients_.at(id);
    if (!client.planned) client.planned = now;
  }
  send(std::move(*plan), now);
  publish();
  return true;
}

void Head::send(Plan plan, async::TimePoint begin) {
  plan.id = next_plan_;
  plan.epoch = epoch_;
  next_plan_ = PlanId(next_plan_.value() + 1);
  auto bytes = plan.encode();
  const async::TimePoint now = runtime_.now();
  sent_.push_back(now);
  stats_.plan_sent(plan, {async::nanoseconds(begin), async::nanoseconds(now), static_cast<uint32_t>(scheduler_.running_count()),
                          static_cast<uint32_t>(scheduler_.waiting_count()), scheduler_.free_pages(), bytes.size(),
                          scheduler_.profiling()});
  to_first_stage_->send(comm::MessageKind::kPlan, epoch_, plan.id, std::move(bytes));
}

async::TimePoint Head::next_deadline() const {
  const async::TimePoint due =
      sent_.empty() ? last_output_ + options_.heartbeat : sent_.front() + options_.watchdog + kWatchdogGrace;
  return needs_expiry_scan() ? std::min(due, last_expiry_ + kExpiryInterval) : due;
}

void Head::send_heartbeat_if_due() {
  if (to_first_stage_ == nullptr || !sent_.empty() || runtime_.now() < last_output_ + options_.heartbeat) return;
  send(scheduler_.empty_plan(), runtime_.now());
}

void Head::check_watchdog() {
  if (to_first_stage_ == nullptr || sent_.empty()) return;
  const async::Duration under_way = runtime_.now() - sent_.front();
  if (under_way < options_.watchdog + kWatchdogGrace) return;
  break_ring(
      fmt::format("plan {} has been under way for {:.1f} s, and no stage says that it is running it "
                  "(--watchdog-timeout)",
                  next_plan_.value() - sent_.size(), seconds(under_way)));
}

asio::awaitable<void> Head::receive_outputs(RingEpoch epoch, std::shared_ptr<comm::LinkReceiver> from_last_stage) {
  std::string reason;
  try {
    for (;;) {
      const comm::Message message = co_await from_last_stage->receive(comm::MessageKind::kOutput);
      if (epoch != epoch_ || to_first_stage_ == nullptr) co_return;
      if (message.epoch == epoch) book(message);
    }
  } catch (const std::exception& failure) {
    reason = failure.what();
  }
  if (epoch == epoch_) break_ring(reason);
}

// Why the link has ended is for receive_outputs() to say, when all outputs have been booked.
asio::awaitable<void> Head::receive_acks(RingEpoch epoch, std::shared_ptr<comm::LinkReceiver> from_last_stage) {
  for (;;) {
    const auto message = co_await comm::receive_until_closed(*from_last_stage, comm::MessageKind::kAcks);
    if (!message || epoch != epoch_ || to_first_stage_ == nullptr) co_return;
    if (message->epoch != epoch) continue;
    const auto booked = acknowledge(*message);
    if (booked.has_error()) break_ring(booked.error().message);
  }
}

Result<void> Head::acknowledge(const comm::Message& message) {
  const auto acks = decode_acks(message.payload.bytes());
  if (acks.has_error()) return acks.error();
  const cache::PrefixCache& cache = scheduler_.cache();
  const size_t asked = cache.verifying() ? cache.cached_host_pages() : 0;
  RETURN_IF_ERROR(scheduler_.acknowledge(*acks));
  if (asked > 0 && !cache.verifying()) {
    log::info("after the break the stages hold {} of {} host pages", cache.cached_host_pages(), asked);
  }
  publish();
  wake_.notify_all();
  return {};
}

void Head::book(const comm::Message& message) {
  last_output_ = runtime_.now();
  auto output = PlanOutput::decode(message.payload.bytes());
  if (output.has_error()) throw ErrorException(output.error());
  const auto expected = scheduler_.check(*output);
  if (expected.has_error()) throw ErrorException(expected.error());
  sent_.pop_front();
  const bool profiled_before = !scheduler_.profiling();
  if (!contention_profile_begin_ && scheduler_.profiling_contention()) contention_profile_begin_ = last_output_;
  std::vector<SequenceUpdate> updates = scheduler_.complete(*output);
  {
    const std::lock_guard lock(mutex_);
    status_.ready = !scheduler_.profiling();
    status_.reason = status_.ready ? "" : "the stages are being timed";
  }
  publish();  // first, so that a client that has its last event finds its pages free
  for (SequenceUpdate& update : updates) deliver(std::move(update));
  stats_.output_booked(*output, message.payload.bytes().size(), async::nanoseconds(last_output_), async::nanoseconds(runtime_.now()));
  scheduler_.set_transit(stats_.transit_us());
  const bool profile_ended = !profiled_before && !scheduler_.profiling();
  if (profile_ended) log_profile();
  const bool may_pause = scheduler_.in_flight_plans() == 0;
  if (profile_ended || may_pause || ++outputs_booked_ % kCostsInterval == 0) publish_costs();
  wake_.notify_all();
}

void Head::log_profile() {
  const double whole_s = seconds(last_output_ - profile_begin_);
  if (!contention_profile_begin_) {
    log::info("the stages have been timed in {:.1f} s", whole_s);
    return;
  }
  const Contention found = scheduler_.contention();
  log::info(
      "the stages have been timed in {:.1f} s, {:.1f} s of it beside each other: contention {:.2f} prompt by prompt, "
      "{:.2f} prompt by other, {:.2f} other by prompt, {:.2f} other by other",
      whole_s, seconds(last_output_ - *contention_profile_begin_), found.prompt_by_prompt, found.prompt_by_other,
      found.other_by_prompt, found.other_by_other);
}

void Head::set_not_ready(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  status_.ready = false;
  status_.reason = reason;
}

void Head::break_ring(const std::string& reason) {
  if (to_first_stage_ == nullptr) return;
  break_reason_ = reason;
  to_first_stage_->close(reason);
  to_first_stage_.reset();
  sent_.clear();
  stats_.ring_broken(async::nanoseconds(runtime_.now()));
  const std::vector<SequenceId> lost = scheduler_.on_ring_lost();
  if (!stopping_) {
    log::error("the ring is broken: {} ({} running requests end, {} stay queued)", reason, lost.size(),
               scheduler_.waiting_count());
    set_not_ready("the ring is broken: " + reason);
  }
  publish();
  end(lost, {ErrorCode::kUnavailable, "the ring is broken: " + reason});
  broken_signal_.notify_all();
  wake_.notify_all();
}

void Head::publish_costs() {
  const SchedulerOptions& scheduler = options_.scheduler;
  RingCosts costs{.page_size = scheduler.page_size,
                  .page_count = scheduler.page_count,
                  .max_running = scheduler.max_running,
                  .context_length = scheduler.context_length,
                  .processors = scheduler.processors,
                  .stage_threads = scheduler.stage_threads,
                  .contention = scheduler_.contention()};
  if (!scheduler_.profiling()) {
    for (const CostFit& stage : scheduler_.isolated_costs().stages()) {
      const auto known = stage.usable() ? stage.recent_coefficients() : stage.fallback();
      if (!known) break;
      if (!stage.usable()) costs.fallbacks.emplace_back(static_cast<uint32_t>(costs.stages.size()));
      costs.stages.push_back(*known);
      costs.relative_errors.push_back(stage.relative_error());
    }
    if (costs.stages.size() < scheduler.stage_count) {
      costs.stages.clear();
      costs.relative_errors.clear();
    }
  }
  stats_.set_costs(std::move(costs));
}

void Head::publish() {
  if (options_.audit) scheduler_.check_invariants();
  complete_flushes();
  const std::lock_guard lock(mutex_);
  status_.running = static_cast<uint32_t>(scheduler_.running_count());
  status_.waiting = static_cast<uint32_t>(scheduler_.waiting_count());
  status_.paused = scheduler_.paused();
  status_.free_pages = scheduler_.free_pages();
  status_.cached_pages = scheduler_.cache().cached_pages();
  status_.host_pages = scheduler_.cache().host_page_count();
  status_.cached_host_pages = scheduler_.cache().cached_host_pages();
  status_.cache = scheduler_.cache().counts();
  status_.preemptions = scheduler_.retraction_count();
  status_.drafts = scheduler_.draft_counts();
}

}  // namespace millrace::sched
