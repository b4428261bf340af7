#include "sched/head/head.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "sched/scheduler/pool_room.h"

namespace millrace::sched {
namespace {

/// Outputs between two publications of the cost model.
constexpr uint64_t kCostsInterval = 16;
/// A stage that is late with a plan reports it at the watchdog's time; the head breaks the ring this much later.
constexpr async::Duration kWatchdogGrace = std::chrono::seconds(1);
/// Time between two checks of the requests' time limits.
constexpr async::Duration kExpiryInterval = std::chrono::milliseconds(100);

/// Submissions that may arrive during a turn beyond those that can run or wait; the head decides which to refuse.
constexpr size_t kMaxExcessSubmissions = 1024;

constexpr const char* kShuttingDown = "the server is shutting down";

}  // namespace

Head::Head(async::Runtime& runtime, HeadOptions options)
    : runtime_(runtime),
      options_(std::move(options)),
      timeouts_{.queue = options_.queue_timeout, .prefetch = options_.prefetch_timeout, .run = options_.run_timeout},
      intake_(runtime, size_t{options_.max_queued} + options_.scheduler.max_running + kMaxExcessSubmissions,
              options_.audit),
      scheduler_(options_.scheduler),
      capacity_(capacity_of(options_.scheduler)),
      stats_(options_.model.stage_count, options_.scheduler.window, options_.model.rank_count),
      delivery_(intake_, options_.audit),
      tasks_(runtime),
      wake_(runtime),
      broken_signal_(runtime) {
  intake_.set_ready(false, "the ring has not formed yet");
  intake_.publish({.free_pages = options_.scheduler.page_count,
                   .total_pages = options_.scheduler.page_count,
                   .page_size = options_.scheduler.page_size});
}

asio::awaitable<void> Head::run() {
  tasks_.spawn("head turns", take_turns());
  tasks_.spawn("head controls", receive_controls());
  co_await tasks_.join();
}

void Head::stop() {
  expect_stop();
  (void)intake_.push(Stop{});
}

Head::Capacity Head::capacity_of(const SchedulerOptions& options) {
  return {
      .context_length = options.context_length, .page_count = options.page_count, .concurrency = concurrency(options)};
}

Head::Capacity Head::capacity() const {
  const std::lock_guard lock(capacity_mutex_);
  return capacity_;
}

Result<std::unique_ptr<TokenStream>> Head::submit(GenerateRequest request, async::Runtime& client) {
  RETURN_IF_ERROR(check_request(request, {.context_length = capacity().context_length,
                                          .vocab_size = options_.scheduler.vocab_size,
                                          .has_output_head = options_.scheduler.has_output_head}));
  return intake_.submit(std::move(request), client);
}

ModelInfo Head::model_info() const {
  ModelInfo info = options_.model;
  Capacity now = capacity();
  info.context_length = now.context_length;
  info.kv_token_capacity = uint64_t{now.page_count} * options_.scheduler.page_size;
  info.concurrency = std::move(now.concurrency);
  return info;
}

asio::awaitable<Result<void>> Head::flush_cache(async::Runtime& runtime, async::Duration timeout) {
  const FlushReply reply(runtime, 1);
  Result<void> result = Error{ErrorCode::kUnavailable, kShuttingDown};
  if (!intake_.push(Flush{runtime.now() + timeout, reply})) co_return result;
  std::optional<Result<void>> replied;
  try {
    replied = co_await reply.receive();
  } catch (...) {
    reply.close();  // the caller has gone, and the head need not flush any more
    throw;
  }
  if (replied) result = std::move(*replied);
  co_return result;
}

void Head::attach(RingEpoch epoch, std::unique_ptr<comm::LinkSender> to_first_stage,
                  std::unique_ptr<comm::LinkReceiver> from_last_stage, std::unique_ptr<StepParticipant> steps) {
  CHECK(!ring_, "a ring is attached already");
  if (stopping_) return;
  const async::TimePoint now = runtime_.now();
  const RingTimers timers{.heartbeat = options_.heartbeat, .watchdog = options_.watchdog + kWatchdogGrace};
  ring_.emplace(epoch, timers, std::move(to_first_stage), now);
  profile_log_.ring_attached(now);
  const Outputs outputs = std::move(from_last_stage);
  tasks_.spawn("head outputs", receive_outputs(epoch, outputs));
  tasks_.spawn("head acks", receive_acks(epoch, outputs));
  steps_ = std::move(steps);
  if (steps_) tasks_.spawn("head steps", follow_steps(epoch, steps_));
  stats_.ring_attached(epoch, async::nanoseconds(now));
  send(scheduler_.empty_plan(), now);
  wake_.notify_all();
}

void Head::resize_pools(cache::PoolSizes pages) {
  CHECK(!ring_, "the pools are resized while a ring is attached");
  const SchedulerOptions& options = scheduler_.options();
  const cache::PoolSizes before = first_pools(options);
  if (stopping_ || pages == before) return;
  const uint32_t context_before = options.context_length;
  const std::vector<SequenceId> ended = scheduler_.resize(pages);
  {
    Capacity resized = capacity_of(options);
    const std::lock_guard lock(capacity_mutex_);
    capacity_ = std::move(resized);
  }
  log::warn("KV cache: {} pages of {} tokens from now on, {} before; host tier: {}, {} before; context: {}, {} before",
            pages.device, options.page_size, before.device, pages.host, before.host, options.context_length,
            context_before);
  publish();
  if (ended.empty()) return;
  log::warn("{} queued requests end, since a context of {} tokens does not hold them", ended.size(),
            options.context_length);
  delivery_.fail(ended,
                 make_error(ErrorCode::kUnavailable,
                            "the KV cache has become smaller while the request was queued: a context of {} tokens, {} "
                            "before, does not hold it",
                            options.context_length, context_before),
                 runtime_.now());
}

asio::awaitable<void> Head::wait_until_broken() {
  while (ring_) co_await broken_signal_.wait();
}

void Head::break_ring(const std::string& reason) {
  if (!ring_) return;
  break_reason_ = reason;
  ring_->close(reason);
  ring_.reset();
  if (steps_) steps_->leave(reason);
  steps_.reset();
  const async::TimePoint now = runtime_.now();
  stats_.ring_broken(async::nanoseconds(now));
  const std::vector<SequenceId> lost = scheduler_.on_ring_lost();
  const std::string message = "the ring is broken: " + reason;
  if (!stopping_ && !stop_expected_) {
    log::error("{} ({} running requests end, {} stay queued)", message, lost.size(), scheduler_.waiting_count());
    intake_.set_ready(false, message);
  }
  publish();
  delivery_.fail(lost, {ErrorCode::kUnavailable, message}, now);
  broken_signal_.notify_all();
  wake_.notify_all();
}

asio::awaitable<void> Head::take_turns() {
  while (!stopping_) {
    if (options_.audit) audit();
    if (!ring_) {
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
      if (send_step_without_rows()) continue;
    }
    // A slice of this work keeps the head from everything else, so other handlers run between two slices.
    const bool works = scheduler_.masks_pending();
    if (works) work_on_masks();
    (void)co_await wake_.wait_until(works ? runtime_.now() : next_deadline());
    check_watchdog();
    expire_requests();
    const async::TimePoint now = runtime_.now();
    if (ring_ && ring_->heartbeat_due(now)) send(scheduler_.empty_plan(), now);
  }
}

// Every client has a sequence that waits or runs, and every such sequence has a client.
void Head::audit() const {
  const size_t known = scheduler_.running_count() + scheduler_.waiting_count();
  CHECK(delivery_.size() == known, "{} clients wait for {} sequences", delivery_.size(), known);
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
  for (const SequenceId id : scheduler_.newest_plan()) delivery_.planned(id, now);
  send(std::move(*plan), now);
  publish();
  return true;
}

/// Steps along with the other rings. While the stages are being timed, only one plan is in flight.
bool Head::send_step_without_rows() {
  if (!steps_ || !steps_->behind() || (scheduler_.profiling() && scheduler_.in_flight_plans() > 0)) return false;
  Plan plan = scheduler_.empty_plan();
  plan.step = steps_->begin_step();
  send(std::move(plan), runtime_.now());
  return true;
}

void Head::send(Plan plan, async::TimePoint begin) {
  if (steps_ && !plan.slices.empty()) plan.step = steps_->begin_step();
  std::vector<std::byte> bytes = ring_->encode(plan);
  const async::TimePoint now = runtime_.now();
  stats_.plan_sent(plan, {.schedule_ns = async::nanoseconds(begin),
                          .sent_ns = async::nanoseconds(now),
                          .running = static_cast<uint32_t>(scheduler_.running_count()),
                          .waiting = static_cast<uint32_t>(scheduler_.waiting_count()),
                          .free_pages = scheduler_.free_pages(),
                          .bytes = bytes.size(),
                          .profile = scheduler_.profiling()});
  ring_->send(std::move(bytes), now);
}

async::TimePoint Head::next_deadline() const {
  const async::TimePoint due = ring_->next_deadline();
  return needs_expiry_scan() ? std::min(due, last_expiry_ + kExpiryInterval) : due;
}

void Head::check_watchdog() {
  const async::TimePoint now = runtime_.now();
  if (!ring_ || !ring_->overdue(now)) return;
  break_ring(
      fmt::format("plan {} has been in flight for {:.1f} s, and no stage reports that it runs it "
                  "(--watchdog-timeout)",
                  ring_->oldest_plan().value(), async::to_seconds(ring_->oldest_age(now))));
}

void Head::work_on_masks() {
  std::vector<SequenceUpdate> ended = scheduler_.work_on_masks();
  if (ended.empty()) return;
  publish();
  for (SequenceUpdate& update : ended) delivery_.deliver(std::move(update), runtime_.now());
}

asio::awaitable<void> Head::receive_outputs(RingEpoch epoch, Outputs from_last_stage) {
  std::string reason;
  try {
    for (;;) {
      const comm::Message message = co_await from_last_stage->receive(comm::MessageKind::kOutput);
      if (!attached(epoch)) co_return;
      if (message.epoch == epoch) book(message);
    }
  } catch (const std::exception& failure) {
    reason = failure.what();
  }
  if (attached(epoch)) break_ring(reason);
}

/// Wakes the turns when the other rings have gone on, and breaks the ring when one of them has left.
asio::awaitable<void> Head::follow_steps(RingEpoch epoch, Steps steps) {
  std::string reason;
  try {
    for (;;) {
      co_await steps->wait_for_target();
      if (!attached(epoch)) co_return;
      wake_.notify_all();
    }
  } catch (const std::exception& ended) {
    reason = ended.what();
  }
  if (attached(epoch)) break_ring(reason);
}

// receive_outputs() reports why the link has ended, after all outputs have been booked.
asio::awaitable<void> Head::receive_acks(RingEpoch epoch, Outputs from_last_stage) {
  for (;;) {
    const auto message = co_await comm::receive_until_closed(*from_last_stage, comm::MessageKind::kAcks);
    if (!message || !attached(epoch)) co_return;
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
  const async::TimePoint arrived = runtime_.now();
  auto output = PlanOutput::decode(message.payload.bytes());
  if (output.has_error()) throw ErrorException(output.error());
  const auto expected = scheduler_.check(*output);
  if (expected.has_error()) throw ErrorException(expected.error());
  ring_->output_arrived(arrived);
  profile_log_.output_arrived(scheduler_, arrived);
  std::vector<SequenceUpdate> updates = scheduler_.complete(*output);
  const bool ready = !scheduler_.profiling();
  intake_.set_ready(ready, ready ? "" : "the stages are being timed");
  publish();  // first, so that a client that has its last event finds its pages free
  for (SequenceUpdate& update : updates) delivery_.deliver(std::move(update), runtime_.now());
  stats_.output_booked(*output, message.payload.bytes().size(), async::nanoseconds(arrived),
                       async::nanoseconds(runtime_.now()));
  scheduler_.set_transit(stats_.transit_us());
  const bool profile_ended = profile_log_.output_booked(scheduler_);
  const bool may_pause = scheduler_.in_flight_plans() == 0;
  if (profile_ended || may_pause || ++outputs_booked_ % kCostsInterval == 0) {
    stats_.set_costs(ring_costs_of(scheduler_));
  }
  wake_.notify_all();
}

asio::awaitable<void> Head::receive_controls() {
  for (;;) {
    auto control = co_await intake_.next();
    if (!control) co_return;
    std::visit([this](auto& what) { handle(std::move(what)); }, *control);
    publish();
    wake_.notify_all();
  }
}

void Head::handle(Submission submission) {
  intake_.submission_taken();
  delivery_.add(submission);
  if (stopping_) {
    delivery_.fail({submission.id}, {ErrorCode::kUnavailable, kShuttingDown}, runtime_.now());
    return;
  }
  // submit() has checked the request against limits that may have changed since.
  if (const auto fits = scheduler_.admissible(submission.request); fits.has_error()) {
    delivery_.fail({submission.id}, fits.error(), runtime_.now());
    return;
  }
  const auto waited = std::chrono::microseconds(submission.request.waited_us);
  stats_.request_arrived(async::nanoseconds(submission.submitted + waited));
  queue(std::move(submission));
}

void Head::queue(Submission submission) {
  const auto ended = scheduler_.offer(submission.id, std::move(submission.request), options_.max_queued);
  if (!ended) return;
  const std::string reason = *ended == submission.id
                                 ? fmt::format("{} requests may wait", options_.max_queued)
                                 : std::string("a request of higher priority has taken its place in the queue");
  publish();  // first, so that a client that has its last event finds its place free
  delivery_.fail({*ended},
                 {ErrorCode::kExhausted, fmt::format("the queue is full: {} (--max-queued-requests)", reason)},
                 runtime_.now());
}

void Head::handle(AbortSequence abort) {
  if (scheduler_.abort(abort.id)) delivery_.abort({abort.id}, runtime_.now());
}

void Head::handle(Pause pause) {
  delivery_.abort(scheduler_.pause(pause.mode), runtime_.now());
}

void Head::handle(Resume) {
  scheduler_.resume();
}

void Head::handle(Flush flush) {
  if (stopping_) {
    flush.reply.close();
    return;
  }
  flushes_.add(std::move(flush));
}

void Head::handle(ReturnWaiting returned) {
  const std::vector<SequenceId> movable = delivery_.movable();
  if (movable.empty()) return;
  for (const SequenceId id : movable) scheduler_.abort(id);
  publish();
  delivery_.give_back(movable, {ErrorCode::kUnavailable, returned.reason}, runtime_.now());
}

void Head::handle(Rebuild rebuild) {
  break_ring(rebuild.reason);
}

void Head::handle(Stop) {
  stopping_ = true;
  intake_.set_ready(false, kShuttingDown);
  intake_.close();
  flushes_.cancel();
  const std::vector<SequenceId> everyone = delivery_.ids();
  for (const SequenceId id : everyone) scheduler_.abort(id);
  delivery_.fail(everyone, {ErrorCode::kAborted, kShuttingDown}, runtime_.now());
  break_ring("the head has stopped");
}

bool Head::needs_expiry_scan() const {
  return (timeouts_.any() && delivery_.size() > 0) || !flushes_.empty();
}

void Head::expire_requests() {
  const async::TimePoint now = runtime_.now();
  if (now < last_expiry_ + kExpiryInterval) return;
  last_expiry_ = now;
  flushes_.settle(scheduler_, now);
  if (!timeouts_.any()) return;
  const OutputDelivery::Expired expired = delivery_.expired(timeouts_, now);
  for (const SequenceId id : expired.prefetching) scheduler_.stop_prefetch_wait(id);
  fail_expired(expired.queued, fmt::format("the request waited {} s in the queue (--queue-timeout)",
                                           async::to_seconds(timeouts_.queue)));
  fail_expired(expired.running,
               fmt::format("the request ran for {} s (--run-timeout)", async::to_seconds(timeouts_.run)));
}

void Head::fail_expired(const std::vector<SequenceId>& expired, const std::string& message) {
  if (expired.empty()) return;
  for (const SequenceId id : expired) scheduler_.abort(id);
  publish();
  delivery_.fail(expired, {ErrorCode::kTimeout, message}, runtime_.now());
}

namespace {

std::vector<WindowStatus> window_statuses(const cache::PrefixCache& cache) {
  std::vector<WindowStatus> all;
  for (const auto& group : cache.windows()) {
    all.push_back({.kind = group->kind(),
                   .window = group->has_states() ? 0 : group->window(),
                   .free_pages = group->account().available_pages(),
                   .total_pages = group->account().pool().page_count(),
                   .cached_pages = group->pages().device_page_count(),
                   .host_pages = group->account().host().page_count(),
                   .cached_host_pages = group->pages().host_page_count()});
  }
  return all;
}

}  // namespace

void Head::publish() {
  if (options_.audit) scheduler_.check_invariants();
  if (!flushes_.empty()) flushes_.settle(scheduler_, runtime_.now());
  const cache::PrefixCache& cache = scheduler_.cache();
  intake_.publish({.paused = scheduler_.paused(),
                   .running = static_cast<uint32_t>(scheduler_.running_count()),
                   .waiting = static_cast<uint32_t>(scheduler_.waiting_count()),
                   .free_pages = scheduler_.free_pages(),
                   .total_pages = cache.page_count(),
                   .page_size = options_.scheduler.page_size,
                   .cached_pages = cache.cached_pages(),
                   .host_pages = cache.host_page_count(),
                   .cached_host_pages = cache.cached_host_pages(),
                   .windows = window_statuses(cache),
                   .cache = cache.counts(),
                   .preemptions = scheduler_.retraction_count(),
                   .drafts = scheduler_.draft_counts()});
}

}  // namespace millrace::sched
