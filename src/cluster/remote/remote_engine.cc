#include "cluster/remote/remote_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <optional>
#include <utility>

#include "base/check.h"

namespace millrace::cluster::remote {
namespace {

bool has_content(const sched::GenerateEvent& event) {
  return !event.tokens.empty() || !event.prompt_logprobs.empty() || event.last();
}

}  // namespace

/// The client's end of one request on the ring.
class RemoteEngine::Stream final : public sched::TokenStream {
 public:
  Stream(RemoteEngine& engine, uint64_t number, sched::EventMailbox events)
      : engine_(engine), number_(number), events_(std::move(events)) {}
  ~Stream() override {
    events_.close();  // the client's Runtime may end before the ring's last event comes
    if (!ended_) engine_.forget(number_);
  }

  asio::awaitable<sched::GenerateEvent> next() override {
    CHECK(!ended_, "a token stream was read past its last event");
    auto event = co_await events_.receive();
    CHECK(event.has_value());
    ended_ = event->last();
    co_return std::move(*event);
  }

 private:
  RemoteEngine& engine_;
  const uint64_t number_;
  sched::EventMailbox events_;
  bool ended_ = false;
};

RemoteEngine::RemoteEngine(async::Runtime& runtime, uint32_t ring, const sched::Engine& like, const std::string& where)
    : runtime_(runtime), ring_(ring), like_(like), absence_(fmt::format("has not joined at {}", where)) {}

/// Returns why the ring takes no requests; empty: it takes them. The mutex is held.
std::string RemoteEngine::fault() const {
  if (!is_connected_) return absence_;
  if (is_quiet_) return "its node is silent";
  return state_.status.ready ? "" : state_.status.reason;
}

sched::ModelInfo RemoteEngine::model_info() const {
  {
    const std::lock_guard lock(mutex_);
    if (is_connected_ && !state_.model.architecture.empty()) return state_.model;
  }
  sched::ModelInfo model = like_.model_info();
  model.kv_token_capacity = 0;
  model.concurrency.clear();
  return model;
}

sched::EngineStatus RemoteEngine::status() const {
  const std::lock_guard lock(mutex_);
  sched::EngineStatus status = state_.status;
  status.reason = fault();
  status.ready = status.reason.empty();
  // The ring's own counts are older than what this process has sent and received.
  const auto begun = std::ranges::count_if(clients_, [](const auto& each) { return each.second.has_begun; });
  status.running = static_cast<uint32_t>(begun);
  status.waiting = static_cast<uint32_t>(clients_.size()) - status.running;
  return status;
}

std::shared_ptr<const sched::RingView> RemoteEngine::ring_stats() const {
  const std::lock_guard lock(mutex_);
  return mirror_;
}

std::string RemoteEngine::node_metrics() const {
  const std::lock_guard lock(mutex_);
  return metrics_.text;
}

std::string RemoteEngine::arithmetic() const {
  const std::lock_guard lock(mutex_);
  return arithmetic_;
}

/// Sends a message on the present connection, after those that were posted before. The mutex is held.
void RemoteEngine::post(Content content) {
  asio::post(runtime_.executor(), [this, message = RingMessage{encode(content)}, connection = connection_count_] {
    if (connection_ && connection == connection_count_) connection_->send(message);
  });
}

/// Sends the ring what the front has last said about pausing. The mutex is held.
void RemoteEngine::post_pause() {
  post(pause_ ? Content(PauseRing{*pause_}) : Content(ResumeRing{}));
}

bool RemoteEngine::set_pause(std::optional<sched::PauseMode> mode) {
  const std::lock_guard lock(mutex_);
  pause_ = mode;
  if (is_connected_) post_pause();
  return is_connected_;
}

bool RemoteEngine::send_if_connected(Content content) {
  const std::lock_guard lock(mutex_);
  if (is_connected_) post(std::move(content));
  return is_connected_;
}

Result<std::unique_ptr<sched::TokenStream>> RemoteEngine::submit(sched::GenerateRequest request,
                                                                 async::Runtime& client) {
  // An event per token, one for the beginning and one for the end.
  sched::EventMailbox events(client, size_t{request.max_tokens} + 3);
  const std::lock_guard lock(mutex_);
  if (const std::string why = fault(); !why.empty()) return make_error(ErrorCode::kUnavailable, "not ready: {}", why);
  const uint64_t number = next_number_;
  if (!by_id_.emplace(request.id, number).second) {
    return make_error(ErrorCode::kConflict, "request id '{}' is in use by a request in flight", request.id);
  }
  ++next_number_;
  clients_.emplace(number, Client{.request_id = request.id, .events = events, .is_pinned = request.ring.has_value()});
  request.reports_start = true;
  post(SubmitRequest{.number = number, .request = std::move(request)});
  return std::unique_ptr<sched::TokenStream>(std::make_unique<Stream>(*this, number, events));
}

bool RemoteEngine::abort(const std::string& request_id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(request_id);
  if (found == by_id_.end()) return false;
  post(AbortRequest{found->second});
  return true;
}

/// Forgets a request whose client has left, and ends it.
void RemoteEngine::forget(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = clients_.find(number);
  if (found == clients_.end()) return;
  by_id_.erase(found->second.request_id);
  clients_.erase(found);
  post(AbortRequest{number});
}

asio::awaitable<Result<void>> RemoteEngine::flush_cache(async::Runtime& runtime, async::Duration timeout) {
  const sched::FlushReply reply(runtime, 1);
  const auto timeout_us = std::chrono::duration_cast<std::chrono::microseconds>(timeout).count();
  {
    const std::lock_guard lock(mutex_);
    if (is_connected_) {
      const uint64_t number = next_number_++;
      flushes_.emplace(number, reply);
      post(FlushRing{.number = number, .timeout_us = timeout_us});
    } else {
      reply.close();
    }
  }
  std::optional<Result<void>> flushed;
  try {
    flushed = co_await reply.receive();
  } catch (...) {
    reply.close();  // the caller's Runtime may end before the ring replies
    throw;
  }
  if (flushed) co_return *flushed;
  co_return Error{ErrorCode::kUnavailable, "its process is not connected"};
}

void RemoteEngine::attach(std::shared_ptr<ControlConnection> connection, const RingFacts& facts) {
  connection_ = std::move(connection);
  const std::lock_guard lock(mutex_);
  ++connection_count_;
  is_connected_ = true;
  is_quiet_ = false;
  arithmetic_ = facts.arithmetic;
  state_ = {};
  state_.status.reason = "its state is not known yet";
  post_pause();  // the ring may be new, or another front may have paused it
}

void RemoteEngine::set_quiet(bool quiet) {
  const std::lock_guard lock(mutex_);
  is_quiet_ = quiet;
}

void RemoteEngine::handle(Content content) {
  if (auto* event = std::get_if<RequestEvent>(&content)) {
    deliver(std::move(*event));
  } else if (auto* state = std::get_if<RingState>(&content)) {
    const std::lock_guard lock(mutex_);
    state_ = std::move(*state);
  } else if (auto* figures = std::get_if<RingFigures>(&content)) {
    mirror(std::move(*figures));
  } else if (auto* metrics = std::get_if<RingMetrics>(&content)) {
    const std::lock_guard lock(mutex_);
    metrics_ = std::move(*metrics);
  } else if (auto* flushed = std::get_if<RingFlushed>(&content)) {
    const std::lock_guard lock(mutex_);
    const auto waiting = flushes_.find(flushed->number);
    if (waiting == flushes_.end()) return;
    Result<void> result;
    if (flushed->error) result = *flushed->error;
    (void)waiting->second.try_push(std::move(result));
    flushes_.erase(waiting);
  } else {
    throw_error(ErrorCode::kData,
                fmt::format("a ring sent a message of kind {}, which only fronts send", content.index()));
  }
}

void RemoteEngine::mirror(RingFigures figures) {
  const std::lock_guard lock(mutex_);
  if (mirror_ == nullptr) {
    mirror_ = std::make_shared<RingMirror>(std::move(figures));
  } else {
    mirror_->take(std::move(figures));
  }
}

void RemoteEngine::deliver(RequestEvent event) {
  const std::lock_guard lock(mutex_);
  const auto found = clients_.find(event.number);
  if (found == clients_.end()) return;  // its client has left
  Client& client = found->second;
  client.has_begun = true;
  if (!has_content(event.event)) return;
  const bool is_last = event.event.last();
  if (is_last) by_id_.erase(client.request_id);  // before the client receives it, which may use the id again at once
  (void)client.events.try_push(std::move(event.event));
  if (is_last) clients_.erase(found);
}

void RemoteEngine::detach(const std::string& reason) {
  connection_ = nullptr;
  const std::lock_guard lock(mutex_);
  is_connected_ = false;
  absence_ = reason;
  arithmetic_.clear();
  state_ = {};
  metrics_ = {};
  mirror_ = nullptr;  // those who still read it keep it
  by_id_.clear();
  for (auto& [number, client] : clients_) {
    sched::GenerateEvent event;
    event.error = make_error(ErrorCode::kUnavailable, "ring {}: {}", ring_, reason);
    event.is_returned = !client.has_begun && !client.is_pinned;
    (void)client.events.try_push(std::move(event));
  }
  clients_.clear();
  for (const auto& [number, reply] : flushes_) reply.close();
  flushes_.clear();
}

}  // namespace millrace::cluster::remote
