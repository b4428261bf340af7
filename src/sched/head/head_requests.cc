// What clients and administrators ask of the head, and what they hear back.
#include <algorithm>

#include "sched/head/head.h"

namespace millrace::sched {
namespace {

int64_t microseconds(async::Duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

/// How long past its deadline a flush waits for copies that no request wants any more.
constexpr async::Duration kCopyTimeout = std::chrono::seconds(5);

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
  into.accepted_predictions += later.accepted_predictions;
  into.rejected_predictions += later.rejected_predictions;
}

}  // namespace

/// The client's end. The mailbox holds at most one event per token, which the request's max_tokens bounds.
class Head::Stream final : public TokenStream {
 public:
  Stream(Head& head, SequenceId id, std::string request_id, Events events)
      : head_(head), id_(id), request_id_(std::move(request_id)), events_(std::move(events)) {}
  ~Stream() override {
    if (ended_ && head_.options_.audit) {
      CHECK(!events_.try_receive(), "sequence {} had another event after its last one", id_.value());
    }
    events_.close();  // the client's Runtime may end before the head hears of it
    if (ended_) return;
    head_.forget(request_id_, id_);
    (void)head_.controls_.try_push(Abort{id_});
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
  const std::string request_id_;
  Events events_;
  bool ended_ = false;
};

Result<std::unique_ptr<TokenStream>> Head::submit(GenerateRequest request, async::Runtime& client) {
  RETURN_IF_ERROR(scheduler_.admissible(request));
  const SequenceId id{next_sequence_.fetch_add(1)};
  std::string request_id = request.id;
  Events events(client, size_t{request.max_tokens} + 2);
  {
    const std::lock_guard lock(mutex_);
    if (!status_.ready) return make_error(ErrorCode::kUnavailable, "not ready: {}", status_.reason);
    if (status_.waiting + unhandled_submissions_ >= options_.max_queued) {
      return make_error(ErrorCode::kExhausted, "the queue is full: {} requests are waiting (--max-queued-requests)",
                        status_.waiting + unhandled_submissions_);
    }
    const auto [place, is_new] = by_id_.emplace(request_id, id);
    if (!is_new) {
      return make_error(ErrorCode::kConflict, "request id '{}' is in use by a request in flight", request.id);
    }
    // Before abort() can know the id, whose message must not come first.
    if (!controls_.try_push(Submission{id, std::move(request), events, runtime_.now()})) {
      by_id_.erase(place);
      return Error{ErrorCode::kUnavailable, "the server is shutting down"};
    }
    ++unhandled_submissions_;
  }
  return std::unique_ptr<TokenStream>(std::make_unique<Stream>(*this, id, std::move(request_id), events));
}

void Head::forget(const std::string& request_id, SequenceId id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(request_id);
  if (found != by_id_.end() && found->second == id) by_id_.erase(found);
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
    --unhandled_submissions_;
  }
  clients_.emplace(submission.id, Client{submission.request.id, submission.events, submission.submitted, {}, {}});
  if (stopping_) {
    end({submission.id}, {ErrorCode::kUnavailable, "the server is shutting down"});
    return;
  }
  stats_.request_arrived(async::nanoseconds(submission.submitted));
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

void Head::handle(Resume) {
  scheduler_.resume();
}

void Head::handle(Flush flush) {
  flushes_.push_back(std::move(flush));
  complete_flushes();
}

asio::awaitable<Result<void>> Head::flush_cache(async::Runtime& runtime, async::Duration timeout) {
  async::Mailbox<Result<void>> answer(runtime, 1);
  Result<void> result = Error{ErrorCode::kUnavailable, "the server is shutting down"};
  if (!controls_.try_push(Flush{runtime_.now() + timeout, answer})) co_return result;
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
void Head::complete_flushes() {
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
    } else if (now >= flush.deadline + kCopyTimeout) {
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

bool Head::has_time_limits() const {
  return options_.queue_timeout.count() > 0 || options_.run_timeout.count() > 0 ||
         options_.prefetch_timeout.count() > 0;
}

// Somebody may give up, or is to be given up on.
bool Head::needs_expiry_scan() const {
  return (has_time_limits() && !clients_.empty()) || !flushes_.empty();
}

void Head::expire_requests() {
  const async::TimePoint now = runtime_.now();
  if (now < last_expiry_ + kExpiryInterval) return;
  last_expiry_ = now;
  complete_flushes();
  if (!has_time_limits()) return;
  const auto is_expired = [now](async::Duration limit, async::TimePoint since) {
    return limit.count() > 0 && now > since + limit;
  };
  std::vector<SequenceId> waited;
  std::vector<SequenceId> ran;
  for (const auto& [id, client] : clients_) {
    if (!client.planned && is_expired(options_.queue_timeout, client.submitted)) waited.push_back(id);
    if (is_expired(options_.prefetch_timeout, client.submitted)) scheduler_.stop_prefetch_wait(id);
    if (client.planned && is_expired(options_.run_timeout, *client.planned)) ran.push_back(id);
  }
  fail_expired(std::move(waited), fmt::format("the request waited {} s in the queue (--queue-timeout)",
                                              microseconds(options_.queue_timeout) / 1e6));
  fail_expired(std::move(ran),
               fmt::format("the request ran for {} s (--run-timeout)", microseconds(options_.run_timeout) / 1e6));
}

void Head::fail_expired(std::vector<SequenceId> expired, const std::string& message) {
  if (expired.empty()) return;
  std::ranges::sort(expired);
  for (const SequenceId id : expired) scheduler_.abort(id);
  publish();
  end(expired, {ErrorCode::kTimeout, message});
}

void Head::deliver(SequenceUpdate update) {
  const auto found = clients_.find(update.id);
  if (found == clients_.end()) {
    CHECK(!options_.audit, "sequence {} has ended already and has another event", update.id.value());
    return;
  }
  Client& client = found->second;
  if (client.planned && !client.has_token) {
    client.timings.queued_us = microseconds(*client.planned - client.submitted);
    client.timings.prefill_us = microseconds(runtime_.now() - *client.planned);
    client.has_token = !update.event.tokens.empty();
  }
  update.event.timings = client.timings;
  const bool last = update.event.last();
  if (last) forget(client.request_id, update.id);  // before the client hears of it, who may use the id again at once
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

}  // namespace millrace::sched
