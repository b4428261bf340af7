#include "cluster/remote/ring_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>

#include "base/log.h"
#include "cluster/remote/remote_engine.h"
#include "grammar/grammar.h"
#include "grammar/vocabulary.h"
#include "sched/head/ring_view.h"
#include "sched/steps/step_watch.h"

namespace millrace::cluster::remote {
namespace {

using namespace std::chrono_literals;
using asio::ip::tcp;

constexpr async::Duration kFrontRetry = 250ms;
/// Longest delay between tries at a front that refuses this ring.
constexpr async::Duration kMaxFrontRetry = 5s;
constexpr async::Duration kFrontReminder = 5s;
/// Interval at which changes of the state are sent. It is below the router's interval between two looks.
constexpr async::Duration kStateInterval = 20ms;
constexpr async::Duration kFiguresInterval = 100ms;
constexpr async::Duration kMetricsInterval = 1s;
/// Interval between looks at whether other rings still need the experts of a ring that drains.
constexpr async::Duration kStepsInterval = 50ms;
/// Records in the first figures of a connection: the live page shows no more at once.
constexpr size_t kFirstRecords = 512;
constexpr const char* kNodeStops = "its node is stopping";

sched::GenerateEvent failed(Error error, bool is_returned) {
  sched::GenerateEvent event;
  event.error = std::move(error);
  event.is_returned = is_returned;
  return event;
}

}  // namespace

RingServer::RingServer(async::Runtime& runtime, RingServerOptions options, sched::Engine& engine, RingHost& host)
    : runtime_(runtime),
      options_(std::move(options)),
      engine_(engine),
      host_(host),
      connector_(runtime, options_.front, [this](const std::string& what) { log_wait(what); }),
      tasks_(runtime),
      changed_(runtime),
      reminder_(runtime, kFrontReminder) {}

void RingServer::stop() {
  stopping_ = true;
  connector_.stop();
  if (connection_) connection_->close(kNodeStops);
  changed_.notify_all();
}

asio::awaitable<void> RingServer::drain(async::Duration limit) {
  const async::TimePoint deadline = runtime_.now() + limit;
  draining_ = true;
  (void)engine_.return_waiting(kNodeStops);
  if (limit.count() > 0 && engine_.status().paused && engine_.resume()) {
    log::info("generation was paused: resuming, so that running requests can end");
  }
  if (!requests_.empty()) log::info("{} requests are ending; another signal ends at once", requests_.size());
  while (!stopping_ && !requests_.empty() && runtime_.now() < deadline) (void)co_await changed_.wait_until(deadline);
  if (options_.steps != nullptr && runtime_.now() < deadline) co_await step_along(deadline);
  stop();
}

/// Waits until the rings that share this one's experts take no steps: departure ends their running requests. Those of
/// paused rings take none, so they end.
asio::awaitable<void> RingServer::step_along(async::TimePoint deadline) {
  sched::StepWatch watch(options_.quiet_steps);
  const auto is_needed = [this, &watch] {
    const auto stats = engine_.ring_stats();
    if (!is_serving_ || stats == nullptr) return false;
    const sched::StepCounts steps = stats->snapshot(async::nanoseconds(runtime_.now())).steps;
    return watch.is_active(steps.with_rows + steps.without_rows, steps.in_flight > 0, runtime_.now());
  };
  bool is_logged = false;
  while (!stopping_ && is_needed()) {
    if (runtime_.now() >= deadline) {
      log::warn("leaving rings that share experts while they may have requests: the drain timeout has passed");
      co_return;
    }
    if (!std::exchange(is_logged, true)) {
      log::info(
          "stepping along until the rings that share experts have no running requests; another signal ends at once");
    }
    (void)co_await changed_.wait_until(std::min(deadline, runtime_.now() + kStepsInterval));
  }
}

asio::awaitable<void> RingServer::run() {
  async::Duration delay = kFrontRetry;
  while (!stopping_) {
    auto socket = co_await connector_.connect();
    if (stopping_) break;
    if (socket.has_error()) {
      delay = kFrontRetry;
      log_wait(socket.error().message);
    } else {
      const std::string end = co_await serve(std::move(*socket));
      if (stopping_) break;
      // A welcome clears what was logged last.
      delay = reminder_.is_clear() ? kFrontRetry : std::min(2 * delay, kMaxFrontRetry);
      log_wait(end);
    }
    (void)co_await changed_.wait_until(runtime_.now() + delay);
  }
}

void RingServer::log_wait(const std::string& what) {
  if (!reminder_.wants(what)) return;
  log::warn("the front at {}: {}; trying again", options_.front.to_string(), what);
}

/// Serves one connection, and returns how it ended.
asio::awaitable<std::string> RingServer::serve(tcp::socket socket) {
  connection_ = std::make_shared<ControlConnection>(runtime_, std::move(socket), options_.timing, kRingBounds);
  connection_->start();
  send(options_.hello);
  std::string end;
  try {
    co_await handle_messages();
  } catch (const std::exception& failure) {
    end = failure.what();
  }
  is_serving_ = false;
  if (options_.steps != nullptr) options_.steps->detach(stopping_ ? kNodeStops : "the front is gone: " + end);
  changed_.notify_all();
  for (auto& [number, request] : requests_) {
    request.is_aborted = true;
    if (request.is_submitted) (void)engine_.abort(request.id);
  }
  connection_->close(end);
  co_await connection_->join();
  co_await tasks_.join();
  connection_ = nullptr;
  co_return end;
}

asio::awaitable<void> RingServer::handle_messages() {
  for (;;) {
    const Message message = co_await connection_->receive();
    handle(content_of(message));
  }
}

void RingServer::handle(Content content) {
  if (std::holds_alternative<RingWelcome>(content)) {
    log::info("joined the front at {} as ring {}", options_.front.to_string(), options_.hello.ring);
    reminder_.clear();
    is_serving_ = true;
    tasks_.spawn("publish state", publish());
    if (options_.steps != nullptr) join_steps();
  } else if (auto* submit = std::get_if<SubmitRequest>(&content)) {
    // The front may use an id again before the head has forgotten it.
    submit->request.id += fmt::format("#{}", submit->number);
    requests_.emplace(submit->number, Request{.id = submit->request.id});
    tasks_.spawn("request", run_request(std::move(*submit)));
  } else if (const auto* ended = std::get_if<AbortRequest>(&content)) {
    abort(ended->number);
  } else if (const auto* pause = std::get_if<PauseRing>(&content)) {
    (void)engine_.pause(pause->mode);
  } else if (std::holds_alternative<ResumeRing>(content)) {
    (void)engine_.resume();
  } else if (const auto* returned = std::get_if<ReturnWaiting>(&content)) {
    (void)engine_.return_waiting(returned->reason);
  } else if (const auto* rebuild = std::get_if<RebuildRing>(&content)) {
    (void)engine_.rebuild(rebuild->reason);
  } else if (const auto* flushed = std::get_if<FlushRing>(&content)) {
    tasks_.spawn("flush", flush(*flushed));
  } else if (const auto* news = std::get_if<StepNews>(&content)) {
    if (options_.steps == nullptr) throw_error(ErrorCode::kData, "it sent steps to a ring that shares no experts");
    options_.steps->handle(sched::decode_step_message(news->message).value());
  } else {
    throw_error(ErrorCode::kData, fmt::format("it sent a message of kind {}, which only rings send", content.index()));
  }
}

/// Lets the ring step together with those of the front, for as long as the connection lasts.
void RingServer::join_steps() {
  const auto send = [&runtime = runtime_, weak = std::weak_ptr(connection_)](const sched::StepMessage& message) {
    asio::post(runtime.executor(), [weak, news = RingMessage{encode(StepNews{sched::encode(message)})}] {
      if (const Connection connection = weak.lock()) connection->send(news);
    });
  };
  options_.steps->attach(connection_->peer_host(), send);
}

void RingServer::abort(uint64_t number) {
  const auto found = requests_.find(number);
  if (found == requests_.end()) return;  // it has ended meanwhile
  found->second.is_aborted = true;
  if (found->second.is_submitted) (void)engine_.abort(found->second.id);
}

/// Adds to a request what has not travelled with it.
asio::awaitable<Result<void>> RingServer::complete(sched::GenerateRequest& request) {
  if (request.reasoning_limit) {
    auto limit = std::make_shared<sched::ReasoningLimit>(*request.reasoning_limit);
    limit->vocabulary = host_.tag_vocabulary();
    request.reasoning_limit = std::move(limit);
  }
  if (request.grammar_source) {
    Result<std::shared_ptr<const grammar::Grammar>> grammar(nullptr);
    try {
      grammar = co_await host_.compile(request.grammar_source);
    } catch (const std::exception& failure) {
      co_return make_error(ErrorCode::kInternal, "the grammar was not compiled: {}", failure.what());
    }
    if (grammar.has_error()) co_return grammar.error();
    request.grammar = std::move(*grammar);
  }
  co_return Result<void>();
}

asio::awaitable<void> RingServer::run_request(SubmitRequest submit) {
  const uint64_t number = submit.number;
  const bool may_move = !submit.request.ring;
  const auto completed = co_await complete(submit.request);
  std::unique_ptr<sched::TokenStream> stream;
  sched::GenerateEvent event;
  if (completed.has_error()) {
    event = failed(completed.error(), false);
  } else if (requests_.at(number).is_aborted) {
    event.finish = sched::FinishReason::kAbort;
  } else if (draining_) {
    event = failed({ErrorCode::kUnavailable, kNodeStops}, may_move);
  } else {
    auto submitted = engine_.submit(std::move(submit.request), runtime_);
    if (submitted.has_error()) {
      event = failed(submitted.error(), may_move && submitted.error().code == ErrorCode::kUnavailable);
    } else {
      stream = std::move(*submitted);
      requests_.at(number).is_submitted = true;
    }
  }
  while (stream) {
    event = co_await stream->next();
    if (event.last()) break;
    send(RequestEvent{.number = number, .event = std::move(event)});
  }
  stream.reset();
  requests_.erase(number);
  send(RequestEvent{.number = number, .event = std::move(event)});
  changed_.notify_all();
}

asio::awaitable<void> RingServer::flush(FlushRing wanted) {
  const auto flushed = co_await engine_.flush_cache(runtime_, std::chrono::microseconds(wanted.timeout_us));
  RingFlushed result{.number = wanted.number, .error = {}};
  if (flushed.has_error()) result.error = flushed.error();
  send(std::move(result));
}

std::vector<std::byte> RingServer::encode_state() const {
  RingState state{.status = engine_.status(), .model = engine_.model_info()};
  if (draining_) {
    state.status.ready = false;
    state.status.reason = kNodeStops;
  }
  return encode(std::move(state));
}

void RingServer::send_figures() {
  const auto stats = engine_.ring_stats();
  if (stats == nullptr) return;
  const int64_t now_ns = async::nanoseconds(runtime_.now());
  const size_t limit = newest_record_ == 0 ? kFirstRecords : sched::RingView::kMaxRecords;
  RingFigures figures{.rank_count = static_cast<uint32_t>(stats->rank_count()),
                      .as_of_ns = now_ns,
                      .snapshot = stats->snapshot(now_ns),
                      .costs = stats->costs(),
                      .records = stats->records_after(newest_record_, limit)};
  if (!figures.records.empty()) newest_record_ = figures.records.back().number;
  send(std::move(figures));
}

/// Sends the state whenever it has changed, statistics and metrics, as long as the front is there.
asio::awaitable<void> RingServer::publish() {
  std::vector<std::byte> sent;
  async::TimePoint next_figures = runtime_.now();
  async::TimePoint next_metrics = next_figures;
  newest_record_ = 0;
  while (is_serving_) {
    std::vector<std::byte> state = encode_state();
    if (state != sent) {
      sent = state;
      connection_->send(RingMessage{std::move(state)});
    }
    if (runtime_.now() >= next_figures) {
      send_figures();
      next_figures = runtime_.now() + kFiguresInterval;
    }
    if (runtime_.now() >= next_metrics) {
      send(host_.metrics());
      next_metrics = runtime_.now() + kMetricsInterval;
    }
    co_await async::sleep_for(runtime_, kStateInterval);
  }
}

}  // namespace millrace::cluster::remote
