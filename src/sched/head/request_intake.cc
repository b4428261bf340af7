#include "sched/head/request_intake.h"

#include <chrono>
#include <iterator>
#include <limits>
#include <utility>

#include "base/check.h"

namespace millrace::sched {
namespace {

/// Adds a later event to an earlier one that the client has not taken yet.
void merge_event(GenerateEvent& into, GenerateEvent later) {
  into.tokens.insert(into.tokens.end(), later.tokens.begin(), later.tokens.end());
  into.logprobs.insert(into.logprobs.end(), std::make_move_iterator(later.logprobs.begin()),
                       std::make_move_iterator(later.logprobs.end()));
  if (!later.prompt_logprobs.empty()) into.prompt_logprobs = std::move(later.prompt_logprobs);
  if (!later.pooled.empty()) into.pooled = std::move(later.pooled);
  into.finish = later.finish;
  into.error = std::move(later.error);
  into.is_returned = later.is_returned;
  into.timings = later.timings;
  into.cached_tokens = later.cached_tokens;
  into.accepted_predictions += later.accepted_predictions;
  into.rejected_predictions += later.rejected_predictions;
}

}  // namespace

/// The client's end of one request. The mailbox holds at most one event per token, which the request's max_tokens
/// bounds, and those of its start and end.
class RequestIntake::Stream final : public TokenStream {
 public:
  Stream(RequestIntake& intake, SequenceId id, std::string request_id, EventMailbox events)
      : intake_(intake), id_(id), request_id_(std::move(request_id)), events_(std::move(events)) {}
  ~Stream() override {
    if (ended_ && intake_.audit_) {
      CHECK(!events_.try_receive(), "sequence {} had another event after its last one", id_.value());
    }
    events_.close();  // the client's Runtime may end before the head takes the abort
    if (ended_) return;
    intake_.forget(request_id_, id_);
    (void)intake_.push(AbortSequence{id_});
  }

  asio::awaitable<GenerateEvent> next() override {
    CHECK(!ended_, "a token stream was read past its last event");
    auto event = co_await events_.receive();
    CHECK(event.has_value());
    while (!event->last()) {
      auto later = events_.try_receive();
      if (!later) break;
      merge_event(*event, std::move(*later));
    }
    ended_ = event->last();
    co_return std::move(*event);
  }

 private:
  RequestIntake& intake_;
  const SequenceId id_;
  const std::string request_id_;
  EventMailbox events_;
  bool ended_ = false;
};

RequestIntake::RequestIntake(async::Runtime& head_runtime, size_t max_untaken, bool audit)
    : max_untaken_(max_untaken),
      audit_(audit),
      // submit() bounds the submissions, and each stream sends one abort at most: no abort may be lost.
      controls_(head_runtime, std::numeric_limits<size_t>::max()) {}

Result<std::unique_ptr<TokenStream>> RequestIntake::submit(GenerateRequest request, async::Runtime& client) {
  const SequenceId id{next_sequence_.fetch_add(1)};
  std::string request_id = request.id;
  EventMailbox events(client, size_t{request.max_tokens} + 3);
  {
    const std::lock_guard lock(mutex_);
    if (!status_.ready) return make_error(ErrorCode::kUnavailable, "not ready: {}", status_.reason);
    if (!stall_.empty()) return make_error(ErrorCode::kUnavailable, "not ready: {}", stall_);
    if (untaken_submissions_ >= max_untaken_) {
      return make_error(ErrorCode::kExhausted, "{} requests arrived at once: send this one again later",
                        untaken_submissions_);
    }
    const auto [entry, is_new] = by_id_.emplace(request_id, id);
    if (!is_new) {
      return make_error(ErrorCode::kConflict, "request id '{}' is in use by a request in flight", request.id);
    }
    // Pushed under the lock: abort() must not find the id before its submission is in the mailbox.
    const auto submitted = client.now() - std::chrono::microseconds(request.waited_us);
    if (!push(Submission{.id = id, .request = std::move(request), .events = events, .submitted = submitted})) {
      by_id_.erase(entry);
      return Error{ErrorCode::kUnavailable, "the server is shutting down"};
    }
    ++untaken_submissions_;
  }
  return std::unique_ptr<TokenStream>(std::make_unique<Stream>(*this, id, std::move(request_id), events));
}

bool RequestIntake::abort(const std::string& request_id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(request_id);
  return found != by_id_.end() && push(AbortSequence{found->second});
}

EngineStatus RequestIntake::status() const {
  const std::lock_guard lock(mutex_);
  EngineStatus status = status_;
  status.waiting += untaken_submissions_;
  if (status.ready && !stall_.empty()) {
    status.ready = false;
    status.reason = stall_;
  }
  return status;
}

void RequestIntake::forget(const std::string& request_id, SequenceId id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(request_id);
  if (found != by_id_.end() && found->second == id) by_id_.erase(found);
}

void RequestIntake::submission_taken() {
  const std::lock_guard lock(mutex_);
  CHECK(untaken_submissions_ > 0, "a submission is taken twice");
  --untaken_submissions_;
}

void RequestIntake::set_ready(bool ready, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  status_.ready = ready;
  status_.reason = reason;
}

void RequestIntake::set_stall(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  stall_ = reason;
}

void RequestIntake::publish(EngineStatus counts) {
  const std::lock_guard lock(mutex_);
  counts.ready = status_.ready;
  counts.reason = std::move(status_.reason);
  status_ = std::move(counts);
}

}  // namespace millrace::sched
