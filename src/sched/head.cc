#include "sched/head.h"

#include <algorithm>
#include <limits>

#include "base/log.h"

namespace millrace::sched {
namespace {

int64_t microseconds(async::Duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

int64_t nanoseconds(async::TimePoint at) { return at.time_since_epoch().count(); }
/// How often the requests are looked through for those past a time limit.
constexpr async::Duration kExpiryInterval = std::chrono::milliseconds(100);
/// Outputs between two tellings of what the cost model has learnt.
constexpr uint64_t kCostsInterval = 16;
/// A stage that is late with a plan says so itself at the watchdog's time; the head breaks the ring so much later.
constexpr async::Duration kWatchdogGrace = std::chrono::seconds(1);
/// How often an idle head asks for news of copies between tiers.
constexpr async::Duration kCopyPoll = std::chrono::milliseconds(2);
/// How long past its deadline a flush waits for copies that no request wants any more.
constexpr async::Duration kCopyPatience = std::chrono::seconds(5);

/// Adds a later event to an earlier one that the client has not taken yet.
void merge(GenerateEvent& into, GenerateEvent later) {
  into.tokens.insert(into.tokens.end(), later.tokens.begin(), later.tokens.end());
  into.logprobs.insert(into.logprobs.end(), std::make_move_iterator(later.logprobs.begin()),
                       std::make_move_iterator(later.logprobs.end()));
  if (!later.prompt_logprobs.empty()) into.prompt_logprobs = std::move(later.prompt_logprobs);
  into.finish = later.finish;
  into.error = std::move(later.error);
  into.timings = later.timings;
  into.cached_tokens = later.cached_tokens;
}

}  // namespace

/// The client's end. The mailbox holds at most one event per token, which the request's max_tokens bounds.
class Head::Stream final : public TokenStream {
 public:
  Stream(Head& head, SequenceId id, Events events) : head_(head), id_(id), events_(std::move(events)) {}
  ~Stream() override {
    if (!ended_) (void)head_.controls_.try_push(Abort{id_});
  }

  asio::awaitable<GenerateEvent> next() override {
    CHECK(!ended_, "a token stream was read past its last event");
    auto event = co_await events_.receive();
    CHECK(event.has_value());
    while (!event->last()) {
      auto later = events_.try_receive();
      if (!later) break;
      merge(*event, std::move(*later));
    }
    ended_ = event->last();
    co_return std::move(*event);
  }

 private:
  Head& head_;
  const SequenceId id_;
  Events events_;
  bool ended_ = false;
};

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
  status_.free_pages = options_.scheduler.page_count;
}

asio::awaitable<void> Head::run() {
  tasks_.spawn("head turns", take_turns());
  tasks_.spawn("head controls", receive_controls());
  co_await tasks_.join();
}

void Head::attach(Generation generation, std::unique_ptr<comm::LinkSender> to_first_stage,
                  std::unique_ptr<comm::LinkReceiver> from_last_stage) {
  CHECK(to_first_stage_ == nullptr, "a ring is attached already");
  if (stopping_) return;
  generation_ = generation;
  next_plan_ = PlanId(0);
  to_first_stage_ = std::move(to_first_stage);
  last_output_ = runtime_.now();
  tasks_.spawn("head outputs", receive_outputs(generation, std::move(from_last_stage)));
  stats_.ring_attached(generation, nanoseconds(last_output_));
  send(scheduler_.empty_plan(), last_output_);
  wake_.notify_all();
}

asio::awaitable<void> Head::until_broken() {
  while (to_first_stage_ != nullptr) co_await broken_signal_.wait();
}

void Head::stop() { (void)controls_.try_push(Stop{}); }

EngineStatus Head::status() const {
  const std::lock_guard lock(mutex_);
  EngineStatus status = status_;
  status.waiting += submitted_unseen_;
  return status;
}

Result<std::unique_ptr<TokenStream>> Head::submit(GenerateRequest request, async::Runtime& client) {
  RETURN_IF_ERROR(scheduler_.admissible(request));
  const SequenceId id{next_sequence_.fetch_add(1)};
  Events events(client, size_t{request.max_tokens} + 2);
  {
    const std::lock_guard lock(mutex_);
    if (!status_.ready) return make_error(ErrorCode::kUnavailable, "not ready: {}", status_.reason);
    if (status_.waiting + submitted_unseen_ >= options_.max_queued) {
      return make_error(ErrorCode::kExhausted, "the queue is full: {} requests are waiting (--max-queued-requests)",
                        status_.waiting + submitted_unseen_);
    }
    if (!by_id_.emplace(request.id, id).second) {
      return make_error(ErrorCode::kConflict, "request id '{}' is in use by a request in flight", request.id);
    }
    ++submitted_unseen_;
  }
  auto stream = std::make_unique<Stream>(*this, id, events);
  if (!controls_.try_push(Submission{id, std::move(request), events, runtime_.now()})) {
    return Error{ErrorCode::kUnavailable, "the server is shutting down"};
  }
  return std::unique_ptr<TokenStream>(std::move(stream));
}

bool Head::abort(const std::string& request_id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(request_id);
  return found != by_id_.end() && controls_.try_push(Abort{found->second});
}

asio::awaitable<void> Head::receive_controls() {
  for (;;) {
    auto control = co_await controls_.receive();
    if (!control) co_return;
    std::visit([this](auto& what) { handle(std::move(what)); }, *control);
    publish();
    wake_.notify_all();
  }
}

void Head::handle(Submission submission) {
  {
    const std::lock_guard lock(mutex_);
    --submitted_unseen_;
  }
  clients_.emplace(submission.id, Client{submission.request.id, submission.events, submission.submitted, {}});
  if (stopping_) {
    end({submission.id}, {ErrorCode::kUnavailable, "the server is shutting down"});
    return;
  }
  stats_.request_came(nanoseconds(submission.submitted));
  scheduler_.add(submission.id, std::move(submission.request));
}

void Head::handle(Abort abort) {
  if (!scheduler_.abort(abort.id)) return;
  GenerateEvent event;
  event.finish = FinishReason::kAbort;
  deliver({abort.id, std::move(event)});
}

void Head::handle(Pause pause) {
  for (const SequenceId id : scheduler_.pause(pause.mode)) {
    GenerateEvent event;
    event.finish = FinishReason::kAbort;
    deliver({id, std::move(event)});
  }
}

void Head::handle(Resume) { scheduler_.resume(); }

void Head::handle(Flush flush) {
  flushes_.push_back(std::move(flush));
  answer_flushes();
}

asio::awaitable<Result<void>> Head::flush_cache(async::Runtime& runtime, async::Duration patience) {
  async::Mailbox<Result<void>> answer(runtime, 1);
  Result<void> result = Error{ErrorCode::kUnavailable, "the server is shutting down"};
  if (!controls_.try_push(Flush{runtime_.now() + patience, answer})) co_return result;
  std::optional<Result<void>> answered;
  try {
    answered = co_await answer.receive();
  } catch (...) {
    answer.close();  // whoever asked has gone, and the head need not do it any more
    throw;
  }
  if (answered) result = std::move(*answered);
  co_return result;
}

// Copies under way end by themselves and soon, unless a store hangs; requests are worth a refusal at once.
void Head::answer_flushes() {
  if (flushes_.empty()) return;
  const async::TimePoint now = runtime_.now();
  std::vector<Flush> waiting;
  for (Flush& flush : flushes_) {
    if (flush.answer.closed()) continue;
    if (scheduler_.flush_cache()) {
      (void)flush.answer.try_push({});
    } else if (!scheduler_.empty() && now >= flush.deadline) {
      (void)flush.answer.try_push(make_error(ErrorCode::kConflict, "{} requests run and {} wait",
                                             scheduler_.running_count(), scheduler_.waiting_count()));
    } else if (now >= flush.deadline + kCopyPatience) {
      (void)flush.answer.try_push(Error{ErrorCode::kConflict, "pages are still being copied between the tiers"});
    } else {
      waiting.push_back(std::move(flush));
    }
  }
  flushes_ = std::move(waiting);
}

void Head::handle(Stop) {
  stopping_ = true;
  set_not_ready("the server is shutting down");
  controls_.close();
  for (const Flush& flush : flushes_) flush.answer.close();
  flushes_.clear();
  std::vector<SequenceId> everyone;
  for (const auto& [id, client] : clients_) everyone.push_back(id);
  for (const SequenceId id : everyone) scheduler_.abort(id);
  end(everyone, {ErrorCode::kAborted, "the server is shutting down"});
  break_ring("the head has stopped");
}

asio::awaitable<void> Head::take_turns() {
  while (!stopping_) {
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
    end_the_late();
    send_heartbeat_if_due();
  }
}

// Those in the queue may give up meanwhile, and whoever wants a flush.
asio::awaitable<void> Head::wait_for_ring() {
  if (flushes_.empty() && (clients_.empty() || options_.queue_timeout.count() == 0)) {
    co_await wake_.wait();
    co_return;
  }
  (void)co_await wake_.wait_until(last_expiry_ + kExpiryInterval);
  end_the_late();
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
  plan.generation = generation_;
  next_plan_ = PlanId(next_plan_.value() + 1);
  auto bytes = plan.encode();
  const async::TimePoint now = runtime_.now();
  sent_.push_back(now);
  stats_.plan_sent(plan, {nanoseconds(begin), nanoseconds(now), static_cast<uint32_t>(scheduler_.running_count()),
                          static_cast<uint32_t>(scheduler_.waiting_count()), scheduler_.free_pages(), bytes.size()});
  to_first_stage_->send(comm::MessageKind::kPlan, generation_, plan.id, std::move(bytes));
}

async::TimePoint Head::next_deadline() const {
  const bool limited =
      options_.queue_timeout.count() > 0 || options_.run_timeout.count() > 0 || options_.prefetch_timeout.count() > 0;
  const async::TimePoint due =
      sent_.empty() ? last_output_ + heartbeat() : sent_.front() + options_.watchdog + kWatchdogGrace;
  return (limited && !clients_.empty()) || !flushes_.empty() ? std::min(due, last_expiry_ + kExpiryInterval) : due;
}

void Head::end_the_late() {
  const async::TimePoint now = runtime_.now();
  if (now < last_expiry_ + kExpiryInterval) return;
  last_expiry_ = now;
  answer_flushes();
  const auto is_late = [now](async::Duration limit, async::TimePoint since) {
    return limit.count() > 0 && now > since + limit;
  };
  std::vector<SequenceId> waited;
  std::vector<SequenceId> ran;
  for (const auto& [id, client] : clients_) {
    if (!client.planned && is_late(options_.queue_timeout, client.submitted)) waited.push_back(id);
    if (!client.planned && is_late(options_.prefetch_timeout, client.submitted))
      scheduler_.stop_waiting_for_prefetch(id);
    if (client.planned && is_late(options_.run_timeout, *client.planned)) ran.push_back(id);
  }
  end_late(std::move(waited), fmt::format("the request waited {} s in the queue (--queue-timeout)",
                                          microseconds(options_.queue_timeout) / 1e6));
  end_late(std::move(ran),
           fmt::format("the request ran for {} s (--run-timeout)", microseconds(options_.run_timeout) / 1e6));
}

void Head::end_late(std::vector<SequenceId> late, const std::string& message) {
  if (late.empty()) return;
  std::ranges::sort(late);
  for (const SequenceId id : late) scheduler_.abort(id);
  publish();
  end(late, {ErrorCode::kTimeout, message});
}

// Acknowledgements of copies come with outputs only.
async::Duration Head::heartbeat() const {
  return scheduler_.cache().copies_under_way() ? std::min(kCopyPoll, options_.heartbeat) : options_.heartbeat;
}

void Head::send_heartbeat_if_due() {
  if (to_first_stage_ == nullptr || !sent_.empty() || runtime_.now() < last_output_ + heartbeat()) return;
  send(scheduler_.empty_plan(), runtime_.now());
}

void Head::check_watchdog() {
  if (to_first_stage_ == nullptr || sent_.empty()) return;
  const async::Duration under_way = runtime_.now() - sent_.front();
  if (under_way < options_.watchdog + kWatchdogGrace) return;
  break_ring(
      fmt::format("plan {} has been under way for {:.1f} s, and no stage says that it is running it "
                  "(--watchdog-timeout)",
                  next_plan_.value() - sent_.size(), microseconds(under_way) / 1e6));
}

asio::awaitable<void> Head::receive_outputs(Generation generation,
                                            std::unique_ptr<comm::LinkReceiver> from_last_stage) {
  std::string reason;
  try {
    for (;;) {
      const comm::Message message = co_await from_last_stage->receive(comm::MessageKind::kOutput);
      if (generation != generation_ || to_first_stage_ == nullptr) co_return;
      if (message.generation == generation) book(message);
    }
  } catch (const std::exception& failure) {
    reason = failure.what();
  }
  if (generation == generation_) break_ring(reason);
}

void Head::acknowledge(const std::vector<cache::CopyAck>& acks) {
  const cache::PrefixCache& cache = scheduler_.cache();
  const size_t asked = cache.verifying() ? cache.cached_host_pages() : 0;
  const auto booked = scheduler_.acknowledge(acks);
  if (booked.has_error()) throw ErrorException(booked.error());
  if (asked == 0 || cache.verifying()) return;
  log::info("after the break the stages hold {} of {} host pages", cache.cached_host_pages(), asked);
}

void Head::book(const comm::Message& message) {
  last_output_ = runtime_.now();
  auto output = PlanOutput::decode(message.payload.bytes());
  if (output.has_error()) throw ErrorException(output.error());
  sent_.pop_front();
  acknowledge(output->acks);
  const bool profiled_before = !scheduler_.profiling();
  std::vector<SequenceUpdate> updates = scheduler_.complete(*output);
  {
    const std::lock_guard lock(mutex_);
    status_.ready = !scheduler_.profiling();
    status_.reason = status_.ready ? "" : "the stages are being timed";
  }
  publish();  // first, so that a client that has its last event finds its pages free
  for (SequenceUpdate& update : updates) deliver(std::move(update));
  stats_.output_booked(*output, message.payload.bytes().size(), nanoseconds(last_output_), nanoseconds(runtime_.now()));
  scheduler_.set_transit(stats_.transit_us());
  const bool profile_ended = !profiled_before && !scheduler_.profiling();
  if (profile_ended || ++outputs_booked_ % kCostsInterval == 0) publish_costs();
  wake_.notify_all();
}

void Head::deliver(SequenceUpdate update) {
  const auto found = clients_.find(update.id);
  if (found == clients_.end()) return;
  Client& client = found->second;
  if (client.planned) {
    update.event.timings.queued_us = microseconds(*client.planned - client.submitted);
    update.event.timings.prefill_us = microseconds(runtime_.now() - *client.planned);
  }
  const bool last = update.event.last();
  if (last) {  // before the client hears of it, who may use the id again at once
    const std::lock_guard lock(mutex_);
    by_id_.erase(client.request_id);
  }
  // A client that has gone drops its mailbox; nobody misses the event.
  (void)client.events.try_push(std::move(update.event));
  if (last) clients_.erase(found);
}

void Head::end(const std::vector<SequenceId>& ids, const Error& error) {
  for (const SequenceId id : ids) {
    GenerateEvent event;
    event.error = error;
    deliver({id, std::move(event)});
  }
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
  stats_.ring_broken(nanoseconds(runtime_.now()));
  const std::vector<SequenceId> lost = scheduler_.lose_ring();
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
    for (const CostFit& stage : scheduler_.costs_alone().stages()) {
      const auto known = stage.usable() ? stage.coefficients_lately() : stage.stand_in();
      if (!known) break;
      if (!stage.usable()) costs.stand_ins.emplace_back(static_cast<uint32_t>(costs.stages.size()));
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
  answer_flushes();
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
}

}  // namespace millrace::sched
