#include "comm/collective/epoch_experts.h"

#include <algorithm>

#include "base/check.h"
#include "comm/ring_reason.h"

namespace millrace::comm {
namespace {

/// All ranks of the other rings connect at once.
constexpr TcpListenerOptions kExpertListener{.max_pending_connections = 1024};

}  // namespace

Result<uint16_t> EpochExperts::listen(async::Runtime& runtime) {
  if (!listener_) {
    // By both protocols, where this host has both.
    auto listener = TcpListener::open(runtime, {"::", 0}, kExpertListener);
    if (listener.has_error()) listener = TcpListener::open(runtime, {"0.0.0.0", 0}, kExpertListener);
    if (listener.has_error()) return listener.error();
    listener_ = std::move(*listener);
  }
  return listener_->endpoint().port;
}

/// Returns whether an epoch has an endpoint for every rank of every ring.
bool EpochExperts::fits(const ExpertEpoch& epoch) const {
  const auto ranks = static_cast<size_t>(options_.shape.stage_count * options_.shape.rank_count);
  return epoch.endpoints.size() == static_cast<size_t>(options_.shape.ring_count) &&
         std::ranges::all_of(epoch.endpoints, [ranks](const RankEndpoints& ring) { return ring.size() == ranks; });
}

/// Sets the endpoints of this host as this process reaches them. Those of its own ranks are known to others otherwise.
void EpochExperts::set_own_hosts(ExpertEpoch& epoch, RankBlock here) const {
  RankEndpoints& own = epoch.endpoints[static_cast<size_t>(options_.ring)];
  for (size_t index = 0; index < own.size(); ++index) {
    const auto stage = static_cast<int32_t>(index) / options_.shape.rank_count;
    const auto rank = static_cast<int32_t>(index) % options_.shape.rank_count;
    if (here.contains(stage, rank)) own[index] = {.host = "", .port = listener_->endpoint().port};
  }
  for (RankEndpoints& ring : epoch.endpoints) set_host(ring, "127.0.0.1");
}

/// Returns why an epoch is over; nothing if it is not.
std::optional<std::string> EpochExperts::end_reason(uint64_t epoch) {
  const std::lock_guard lock(mutex_);
  if (interrupted_) return "the ring is stopping";
  if (last_end_.epoch != epoch) return std::nullopt;
  return ring_reason(options_.ring, last_end_.ring, last_end_.reason);
}

asio::awaitable<Result<void>> EpochExperts::connect(async::Runtime& runtime, ExpertEpoch epoch, RankBlock here,
                                                    async::TimePoint deadline) {
  CHECK(listener_ != nullptr, "experts are connected before the ranks listen");
  if (!fits(epoch)) {
    co_return make_error(ErrorCode::kData, "the epoch has {} rings, wanted {} with endpoints of {} stages of {} ranks",
                         epoch.endpoints.size(), options_.shape.ring_count, options_.shape.stage_count,
                         options_.shape.rank_count);
  }
  set_own_hosts(epoch, here);
  const uint64_t number = epoch.number;
  const async::Event done(runtime);
  {
    const std::lock_guard lock(mutex_);
    connecting_ = done;
  }
  if (end_reason(number)) done.set();
  TcpExpertsOptions options{.shape = options_.shape,
                            .ring = options_.ring,
                            .here = here,
                            .epoch = std::move(epoch),
                            .sockets = {},
                            .silence = options_.silence};
  TcpExperts::AbortFn on_abort;
  if (on_end_) {
    on_abort = [this, number](int32_t ring, const std::string& reason) { on_end_(number, ring, reason); };
  }
  auto connected = co_await TcpExperts::connect(runtime, *listener_, std::move(options), on_abort, done, deadline);
  {
    const std::lock_guard lock(mutex_);
    connecting_.reset();
    // end() has not seen what connected after it.
    if (connected.has_value() && last_end_.epoch != number && !interrupted_) experts_ = *connected;
  }
  if (const auto reason = end_reason(number)) co_return Error{ErrorCode::kUnavailable, *reason};
  if (connected.has_error()) co_return connected.error();
  co_return Result<void>();
}

std::unique_ptr<tensor::ExpertExchange> EpochExperts::join(StageId stage, uint32_t rank, tensor::Backend& backend) {
  std::shared_ptr<TcpExperts> experts;
  {
    const std::lock_guard lock(mutex_);
    experts = experts_;
  }
  CHECK(experts != nullptr, "stage {} of ring {} joins an exchange that has not begun", stage.value(), options_.ring);
  return TcpExperts::join(experts, static_cast<int32_t>(stage.value()), static_cast<int32_t>(rank), backend);
}

void EpochExperts::end(uint64_t epoch, int32_t ring, const std::string& reason) {
  std::shared_ptr<TcpExperts> experts;
  {
    const std::lock_guard lock(mutex_);
    last_end_ = {.epoch = epoch, .ring = ring, .reason = reason};
    if (connecting_) connecting_->set();
    experts = experts_;
  }
  if (experts) experts->abort(ring, reason);
}

void EpochExperts::interrupt() {
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  if (connecting_) connecting_->set();
}

asio::awaitable<void> EpochExperts::close() {
  {
    const std::lock_guard lock(mutex_);
    experts_ = nullptr;
  }
  if (listener_) co_await listener_->shutdown();
  listener_ = nullptr;
}

}  // namespace millrace::comm
