#include "sched/router/ring_router.h"

#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "sched/head/engine_status.h"
#include "sched/head/model_info.h"
#include "sched/plan/finish_reason.h"
#include "sched/plan/generate_event.h"
#include "sched/plan/pause_mode.h"
#include "sched/plan/pooling.h"
#include "sched/plan/request.h"
#include "sched/router/ring_status.h"

namespace millrace::sched {
namespace {

using namespace std::chrono_literals;

/// Time between two looks at the rings. A broken ring is built again no sooner than twice this, so none is overlooked.
constexpr async::Duration kLookInterval = 50ms;
/// Time between two attempts to find a ring for a request that was returned.
constexpr async::Duration kRetryInterval = 50ms;

constexpr const char* kDraining = "draining";
constexpr const char* kRestarting = "an administrator restarts it";
constexpr const char* kShuttingDown = "the server is shutting down";

GenerateEvent end_with(ErrorCode code, std::string message) {
  GenerateEvent event;
  event.error = Error{code, std::move(message)};
  return event;
}

/// Returns whether a request takes cached pages: one that wants something of every prompt row computes all of them.
bool takes_cached_pages(const GenerateRequest& request) {
  const bool pools_all = request.pooling == Pooling::kFirst || request.pooling == Pooling::kMean;
  return request.prompt_top_logprobs < 0 && !pools_all;
}

}  // namespace

/// The client's end of a routed request, over the stream of the ring that has it now. It keeps the request as long as
/// the ring may return it.
class RingRouter::Stream final : public TokenStream {
 public:
  struct Parts {
    std::shared_ptr<RoutedRequest> routed;
    std::unique_ptr<TokenStream> inner;
    GenerateRequest request;
    PageHasher hasher;
    std::vector<PageName> pages;  // of the prompt; of the output too as it grows
    bool names_pages = false;     // the ring may keep them for others
  };

  Stream(RingRouter& router, async::Runtime& client, Parts parts)
      : router_(router), client_(client), parts_(std::move(parts)), submitted_(client.now()) {}
  ~Stream() override {
    parts_.inner.reset();  // first, so that the ring has forgotten the request when its id is free
    if (parts_.routed) router_.remove(*parts_.routed);
  }

  asio::awaitable<GenerateEvent> next() override {
    CHECK(parts_.routed, "a token stream was read past its last event");
    for (;;) {
      if (!parts_.inner) {
        auto end = co_await find_ring();
        if (end) co_return finish(std::move(*end));
      }
      GenerateEvent event = co_await parts_.inner->next();
      if (!event.is_returned) co_return observe(std::move(event));
      parts_.inner.reset();
    }
  }

 private:
  /// Brings a returned request to a ring. Returns its end where there is none for it.
  asio::awaitable<std::optional<GenerateEvent>> find_ring() {
    for (;;) {
      const async::Duration waited = client_.now() - submitted_;
      parts_.request.waited_us = std::chrono::duration_cast<std::chrono::microseconds>(waited).count();
      Move move = router_.move(*parts_.routed, parts_.request, parts_.pages, client_);
      if (auto* event = std::get_if<GenerateEvent>(&move)) co_return std::move(*event);
      if (auto* stream = std::get_if<std::unique_ptr<TokenStream>>(&move)) {
        parts_.inner = std::move(*stream);
        co_return std::nullopt;
      }
      co_await async::sleep_for(client_, kRetryInterval);
    }
  }

  GenerateEvent observe(GenerateEvent event) {
    if (std::exchange(may_move_, false)) parts_.request = {};
    if (parts_.names_pages && !event.tokens.empty()) name_pages(event.tokens);
    return event.last() ? finish(std::move(event)) : std::move(event);
  }

  /// Names the pages that the output fills. The newest token has no KV before the next one is computed.
  void name_pages(const std::vector<TokenId>& tokens) {
    if (newest_) parts_.hasher.append({&*newest_, 1}, parts_.pages);
    parts_.hasher.append(std::span(tokens).first(tokens.size() - 1), parts_.pages);
    newest_ = tokens.back();
  }

  GenerateEvent finish(GenerateEvent event) {
    if (event.finish) router_.note_computed(parts_.routed->ring, parts_.pages);
    router_.remove(*std::exchange(parts_.routed, nullptr));
    return event;
  }

  RingRouter& router_;
  async::Runtime& client_;
  Parts parts_;
  const async::TimePoint submitted_;
  bool may_move_ = true;
  std::optional<TokenId> newest_;
};

RingRouter::RingRouter(async::Runtime& runtime, std::vector<Engine*> rings, const RouterOptions& options)
    : runtime_(runtime),
      options_(options),
      stop_signal_(runtime),
      rings_(rings.size()),
      policy_({.method = options.method, .ring_count = rings.size(), .max_running = options.max_running}),
      requests_(rings.size()) {
  for (size_t i = 0; i < rings.size(); ++i) rings_[i].engine = rings[i];
}

asio::awaitable<void> RingRouter::run() {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) co_return;
    }
    look_at_rings();
    (void)co_await stop_signal_.wait_until(runtime_.now() + kLookInterval);
  }
}

void RingRouter::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  asio::post(runtime_.executor(), [this] { stop_signal_.notify_all(); });
}

RingRouter::Statuses RingRouter::statuses() const {
  Statuses all;
  for (const RingState& ring : rings_) all.push_back(ring.engine->status());
  return all;
}

std::string RingRouter::fault_of(size_t ring, const EngineStatus& status) const {
  if (!status.ready) return status.reason.empty() ? "not ready" : status.reason;
  if (rings_[ring].restart != Restart::kNone) return kRestarting;
  return rings_[ring].is_draining ? kDraining : "";
}

ModelInfo RingRouter::model_info() const {
  std::vector<ModelInfo> infos;
  for (const RingState& ring : rings_) infos.push_back(ring.engine->model_info());
  return combine_models(infos);
}

EngineStatus RingRouter::status() const {
  const Statuses all = statuses();
  std::vector<std::string> faults;
  const std::lock_guard lock(mutex_);
  for (size_t ring = 0; ring < all.size(); ++ring) faults.push_back(fault_of(ring, all[ring]));
  return combine_statuses(all, faults);
}

RingReport RingRouter::report(size_t ring) const {
  RingReport report{.status = rings_[ring].engine->status(), .fault = {}};
  const std::lock_guard lock(mutex_);
  const RingState& state = rings_[ring];
  report.fault = fault_of(ring, report.status);
  report.is_draining = state.is_draining;
  for (size_t i = 0; i < state.routed.size(); ++i) report.routed.push_back({kRouteReasonNames[i], state.routed[i]});
  report.moved = state.moved;
  return report;
}

std::vector<RoutingPolicy::RingLoad> RingRouter::loads_of(const Statuses& statuses) {
  std::vector<RoutingPolicy::RingLoad> loads(statuses.size());
  bool is_one_awake = false;
  for (size_t ring = 0; ring < loads.size(); ++ring) {
    const EngineStatus& status = statuses[ring];
    const bool has_host_tier = status.host_pages > 0;
    policy_.follow_cache(ring, status.total_pages + status.host_pages,
                         has_host_tier ? status.cache.evicted_host_pages : status.cache.evicted_device_pages);
    loads[ring] = {.serves = fault_of(ring, status).empty(), .in_flight = requests_.in_flight(ring)};
    is_one_awake = is_one_awake || (loads[ring].serves && !status.paused);
  }
  for (size_t ring = 0; ring < loads.size() && is_one_awake; ++ring) {
    if (statuses[ring].paused) loads[ring].serves = false;
  }
  return loads;
}

Result<std::unique_ptr<TokenStream>> RingRouter::submit(GenerateRequest request, async::Runtime& client) {
  if (request.ring && *request.ring >= rings_.size()) {
    return make_error(ErrorCode::kInvalidArgument, "ring {}: there are rings 0 to {}", *request.ring,
                      rings_.size() - 1);
  }
  PageHasher hasher(options_.page_size, request.cache_salt);
  std::vector<PageName> pages;
  const bool names_pages = policy_.uses_prefixes() && options_.share_prefixes && takes_cached_pages(request);
  if (names_pages) hasher.append(request.prompt, pages);
  const std::lock_guard lock(mutex_);
  if (stopping_) return Error{ErrorCode::kUnavailable, kShuttingDown};
  if (requests_.find(request.id)) {
    return make_error(ErrorCode::kConflict, "request id '{}' is in use by a request in flight", request.id);
  }
  auto placed = request.ring ? place_pinned(request, pages, client) : place(request, pages, client);
  if (placed.has_error()) return placed.error();
  Stream::Parts parts{.routed = requests_.add(request.id, placed->ring),
                      .inner = std::move(placed->stream),
                      .request = std::move(request),
                      .hasher = hasher,
                      .pages = std::move(pages),
                      .names_pages = names_pages};
  return std::unique_ptr<TokenStream>(std::make_unique<Stream>(*this, client, std::move(parts)));
}

/// Places a request on the ring that the policy chooses, or on the next one if that ring refuses.
Result<RingRouter::Placement> RingRouter::place(const GenerateRequest& request, const std::vector<PageName>& pages,
                                                async::Runtime& client) {
  const Statuses all = statuses();
  std::vector<RoutingPolicy::RingLoad> loads = loads_of(all);
  std::optional<Error> refusal;
  while (const auto route = policy_.choose(pages, loads)) {
    auto stream = rings_[route->ring].engine->submit(request, client);
    if (stream.has_value()) {
      note_placed(route->ring, route->reason, pages);
      return Placement{std::move(*stream), route->ring};
    }
    if (!refusal) refusal = stream.error();
    loads[route->ring].serves = false;
  }
  if (refusal) return *refusal;
  std::vector<std::string> faults;
  for (size_t ring = 0; ring < all.size(); ++ring) faults.push_back(fault_of(ring, all[ring]));
  return make_error(ErrorCode::kUnavailable, "not ready: {}", combine_statuses(all, faults).reason);
}

Result<RingRouter::Placement> RingRouter::place_pinned(const GenerateRequest& request,
                                                       const std::vector<PageName>& pages, async::Runtime& client) {
  const size_t ring = *request.ring;
  const std::string fault = fault_of(ring, rings_[ring].engine->status());
  if (!fault.empty()) {
    return make_error(ErrorCode::kUnavailable, "ring {}, which the request names, takes none: {}", ring, fault);
  }
  auto stream = rings_[ring].engine->submit(request, client);
  if (stream.has_error()) return make_error(stream.error().code, "ring {}: {}", ring, stream.error().message);
  note_placed(ring, RouteReason::kPinned, pages);
  return Placement{std::move(*stream), ring};
}

void RingRouter::note_placed(size_t ring, RouteReason reason, const std::vector<PageName>& pages) {
  ++rings_[ring].routed[static_cast<size_t>(reason)];
  policy_.add_prefix(ring, pages);
}

RingRouter::Move RingRouter::move(RoutedRequest& routed, const GenerateRequest& request,
                                  const std::vector<PageName>& pages, async::Runtime& client) {
  const std::lock_guard lock(mutex_);
  if (routed.is_aborted) {
    GenerateEvent aborted;
    aborted.finish = FinishReason::kAbort;
    return aborted;
  }
  if (stopping_) return end_with(ErrorCode::kAborted, kShuttingDown);
  const async::Duration limit = options_.queue_timeout;
  if (limit.count() > 0 && std::chrono::microseconds(request.waited_us) > limit) {
    return end_with(ErrorCode::kTimeout,
                    fmt::format("the request waited {} s in queues (--queue-timeout)", async::to_seconds(limit)));
  }
  auto placed = place(request, pages, client);
  if (placed.has_error()) {
    if (placed.error().code == ErrorCode::kUnavailable) return std::monostate();
    return end_with(placed.error().code, placed.error().message);
  }
  if (placed->ring != routed.ring) ++rings_[routed.ring].moved;
  requests_.move(routed, placed->ring);
  return std::move(placed->stream);
}

void RingRouter::note_computed(size_t ring, const std::vector<PageName>& pages) {
  if (pages.empty()) return;
  const std::lock_guard lock(mutex_);
  policy_.add_prefix(ring, pages);
}

void RingRouter::remove(const RoutedRequest& routed) {
  const std::lock_guard lock(mutex_);
  requests_.remove(routed);
}

// A returned request that is on its way to another ring is on none: the mark ends it.
bool RingRouter::abort(const std::string& request_id) {
  const std::lock_guard lock(mutex_);
  const auto routed = requests_.find(request_id);
  if (!routed) return false;
  routed->is_aborted = true;
  (void)rings_[routed->ring].engine->abort(request_id);
  return true;
}

size_t RingRouter::abort_all(size_t ring) {
  const std::lock_guard lock(mutex_);
  const auto all = requests_.requests_of(ring);
  for (const auto& routed : all) {
    routed->is_aborted = true;
    (void)rings_[ring].engine->abort(routed->id);
  }
  return all.size();
}

asio::awaitable<Result<void>> RingRouter::flush(size_t ring, async::Runtime& runtime, async::Duration timeout) {
  Result<void> result = co_await rings_[ring].engine->flush_cache(runtime, timeout);
  if (result.has_error()) {
    result = make_error(result.error().code, "ring {}: {}", ring, result.error().message);
    co_return result;
  }
  const std::lock_guard lock(mutex_);
  policy_.forget_prefixes(ring);
  co_return result;
}

asio::awaitable<Result<void>> RingRouter::flush_cache(async::Runtime& runtime, async::Duration timeout) {
  const async::TimePoint deadline = runtime.now() + timeout;
  Result<void> all;
  for (size_t ring = 0; ring < rings_.size(); ++ring) {
    const async::Duration left = std::max(deadline - runtime.now(), async::Duration{});
    const Result<void> flushed = co_await flush(ring, runtime, left);
    if (flushed.has_error() && !all.has_error()) all = flushed.error();
  }
  co_return all;
}

bool RingRouter::pause(PauseMode mode) {
  bool any = false;
  for (const RingState& ring : rings_) any = ring.engine->pause(mode) || any;
  return any;
}

bool RingRouter::resume() {
  bool any = false;
  for (const RingState& ring : rings_) any = ring.engine->resume() || any;
  return any;
}

bool RingRouter::rebuild(const std::string& reason) {
  bool any = false;
  for (const RingState& ring : rings_) any = ring.engine->rebuild(reason) || any;
  return any;
}

Result<void> RingRouter::drain(size_t ring) {
  const Statuses all = statuses();
  const std::lock_guard lock(mutex_);
  bool has_other = false;
  for (size_t other = 0; other < all.size(); ++other) {
    has_other = has_other || (other != ring && fault_of(other, all[other]).empty());
  }
  if (!has_other) return make_error(ErrorCode::kConflict, "ring {}: no other ring serves", ring);
  if (!std::exchange(rings_[ring].is_draining, true)) log::info("ring {}: draining", ring);
  (void)rings_[ring].engine->return_waiting(kDraining);
  return {};
}

void RingRouter::undrain(size_t ring) {
  const std::lock_guard lock(mutex_);
  rings_[ring].restart = Restart::kNone;
  if (std::exchange(rings_[ring].is_draining, false)) log::info("ring {}: takes requests again", ring);
}

bool RingRouter::restart(size_t ring) {
  const std::lock_guard lock(mutex_);
  if (!rings_[ring].engine->rebuild(kRestarting)) return false;
  log::info("ring {}: restarting", ring);
  rings_[ring].restart = Restart::kAsked;
  return true;
}

/// Ends a restart once the ring has broken and is ready again.
void RingRouter::follow_restart(size_t ring, bool is_ready) {
  RingState& state = rings_[ring];
  if (state.restart == Restart::kAsked && !is_ready) state.restart = Restart::kDown;
  if (state.restart != Restart::kDown || !is_ready) return;
  state.restart = Restart::kNone;
  state.is_draining = false;
  log::info("ring {}: takes requests again", ring);
}

/// Moves the queues of rings that take no requests, as long as another one does.
void RingRouter::look_at_rings() {
  const Statuses all = statuses();
  const std::lock_guard lock(mutex_);
  std::vector<std::string> faults;
  for (size_t ring = 0; ring < all.size(); ++ring) {
    follow_restart(ring, all[ring].ready);
    faults.push_back(fault_of(ring, all[ring]));
  }
  const bool has_ring = std::ranges::any_of(faults, &std::string::empty);
  for (size_t ring = 0; ring < all.size(); ++ring) {
    RingState& state = rings_[ring];
    const bool serves = faults[ring].empty();
    const bool has_lost_cache = std::exchange(state.was_ready, all[ring].ready) && !all[ring].ready;
    if (has_lost_cache) policy_.forget_prefixes(ring);
    if (serves || !has_ring || all[ring].waiting == 0) continue;
    if (has_lost_cache) log::info("ring {}: up to {} queued requests move to other rings", ring, all[ring].waiting);
    (void)state.engine->return_waiting(faults[ring]);
  }
}

}  // namespace millrace::sched
