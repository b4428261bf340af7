#include "app/divided_sharing.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <random>

#include "async/event.h"
#include "base/check.h"
#include "comm/collective/tcp_experts.h"
#include "comm/ring_reason.h"

namespace millrace::app {
namespace {

using namespace std::chrono_literals;

/// Longest time in which the ranks of all rings connect with each other.
constexpr async::Duration kConnectExpertsTimeout = 5s;

/// Returns the number before the first epoch. Epochs of another front then have other numbers.
uint64_t random_first_epoch() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) & ~uint64_t{0xFFFFFFFF};
}

/// Listens on all addresses of this host, by both protocols where it has both.
std::unique_ptr<comm::TcpListener> listen_for_experts(async::Runtime& runtime) {
  // All ranks of the other rings connect at once.
  const comm::TcpListenerOptions options{.max_pending_connections = 1024};
  auto listener = comm::TcpListener::open(runtime, {"::", 0}, options);
  if (listener.has_error()) listener = comm::TcpListener::open(runtime, {"0.0.0.0", 0}, options);
  return std::move(listener).value();
}

}  // namespace

/// The exchange of one ring of this process. The steps may end it from any thread.
class DividedSharing::Part final : public sched::EpochExchange {
 public:
  Part(DividedSharing& owner, const comm::SharedExperts::Shape& shape, int32_t ring, std::chrono::milliseconds silence)
      : owner_(owner), shape_(shape), ring_(ring), silence_(silence) {}

  comm::TcpEndpoint open(async::Runtime& runtime) override {
    listener_ = listen_for_experts(runtime);
    return {.host = "", .port = listener_->endpoint().port};
  }
  asio::awaitable<void> begin(async::Runtime& runtime, const sched::StepEpochs::Membership& epoch) override;
  asio::awaitable<void> close() override;
  void interrupt() override;
  /// Ends the exchange of an epoch, also if it has not begun.
  void end(uint64_t epoch, int32_t ring, const std::string& reason);
  [[nodiscard]] std::unique_ptr<tensor::ExpertExchange> join(StageId stage, uint32_t rank, tensor::Backend& backend);

 private:
  struct Ending {
    uint64_t epoch = 0;
    int32_t ring = -1;
    std::string reason;
  };
  [[nodiscard]] comm::TcpExpertsOptions options_for(const sched::StepEpochs::Membership& epoch) const;
  [[nodiscard]] std::optional<std::string> end_reason(uint64_t epoch);

  DividedSharing& owner_;
  const comm::SharedExperts::Shape shape_;
  const int32_t ring_;
  const std::chrono::milliseconds silence_;
  std::unique_ptr<comm::TcpListener> listener_;  // on the head's Runtime, between open() and close()
  std::mutex mutex_;
  std::shared_ptr<comm::TcpExperts> experts_;  // of the epoch that has begun; guarded by mutex_, as all below
  std::optional<async::Event> connecting_;     // ends begin()
  Ending last_end_;
  bool interrupted_ = false;
};

comm::TcpExpertsOptions DividedSharing::Part::options_for(const sched::StepEpochs::Membership& epoch) const {
  comm::TcpExpertsOptions options{.shape = shape_,
                                  .ring = ring_,
                                  .epoch = epoch.epoch,
                                  .endpoints = epoch.endpoints,
                                  .sockets = {},
                                  .silence = silence_};
  // Only rings of this process have left out their hosts, and the ring of a process has its own as others see it.
  options.endpoints[static_cast<size_t>(ring_)].host.clear();
  for (comm::TcpEndpoint& endpoint : options.endpoints) {
    if (endpoint.host.empty()) endpoint.host = "127.0.0.1";
  }
  return options;
}

/// Returns why an epoch is over; nothing if it is not.
std::optional<std::string> DividedSharing::Part::end_reason(uint64_t epoch) {
  const std::lock_guard lock(mutex_);
  if (interrupted_) return "the ring is stopping";
  if (last_end_.epoch != epoch) return std::nullopt;
  return comm::ring_reason(ring_, last_end_.ring, last_end_.reason);
}

asio::awaitable<void> DividedSharing::Part::begin(async::Runtime& runtime, const sched::StepEpochs::Membership& epoch) {
  const async::Event done(runtime);
  {
    const std::lock_guard lock(mutex_);
    connecting_ = done;
  }
  if (end_reason(epoch.epoch)) done.set();
  const auto on_abort = [&epochs = owner_.epochs(), number = epoch.epoch](int32_t ring, const std::string& reason) {
    epochs.end_epoch(number, ring, reason);
  };
  auto connected = co_await comm::TcpExperts::connect(runtime, *listener_, options_for(epoch), on_abort, done,
                                                      runtime.now() + kConnectExpertsTimeout);
  {
    const std::lock_guard lock(mutex_);
    connecting_.reset();
    if (connected.has_value()) experts_ = *connected;
  }
  if (const auto reason = end_reason(epoch.epoch)) throw_error(ErrorCode::kUnavailable, *reason);
  if (connected.has_error()) throw ErrorException(connected.error());
}

asio::awaitable<void> DividedSharing::Part::close() {
  {
    const std::lock_guard lock(mutex_);
    experts_ = nullptr;
  }
  if (listener_) co_await listener_->shutdown();
  listener_ = nullptr;
}

void DividedSharing::Part::interrupt() {
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  if (connecting_) connecting_->set();
}

void DividedSharing::Part::end(uint64_t epoch, int32_t ring, const std::string& reason) {
  std::shared_ptr<comm::TcpExperts> experts;
  {
    const std::lock_guard lock(mutex_);
    last_end_ = {.epoch = epoch, .ring = ring, .reason = reason};
    if (connecting_) connecting_->set();
    experts = experts_;
  }
  if (experts) experts->abort(ring, reason);
}

std::unique_ptr<tensor::ExpertExchange> DividedSharing::Part::join(StageId stage, uint32_t rank,
                                                                   tensor::Backend& backend) {
  std::shared_ptr<comm::TcpExperts> experts;
  {
    const std::lock_guard lock(mutex_);
    experts = experts_;
  }
  CHECK(experts != nullptr, "stage {} of ring {} joins an exchange that has not begun", stage.value(), ring_);
  return comm::TcpExperts::join(experts, static_cast<int32_t>(stage.value()), static_cast<int32_t>(rank), backend);
}

DividedSharing::DividedSharing(const comm::SharedExperts::Shape& shape, int32_t local, uint64_t lookahead,
                               std::chrono::milliseconds silence)
    : first_ring_(0) {
  for (int32_t ring = 0; ring < local; ++ring) {
    parts_.push_back(std::make_unique<Part>(*this, shape, ring, silence));
  }
  group_ = std::make_unique<sched::StepGroup>(static_cast<uint32_t>(shape.ring_count), lookahead, end_parts(),
                                              random_first_epoch());
}

DividedSharing::DividedSharing(const comm::SharedExperts::Shape& shape, int32_t ring, std::chrono::milliseconds silence)
    : first_ring_(ring) {
  parts_.push_back(std::make_unique<Part>(*this, shape, ring, silence));
  remote_ = std::make_unique<sched::RemoteStepGroup>(static_cast<uint32_t>(ring),
                                                     static_cast<uint32_t>(shape.ring_count), end_parts());
}

DividedSharing::~DividedSharing() = default;

/// Returns what ends the exchanges with the steps.
sched::StepEpochs::EndFn DividedSharing::end_parts() {
  return [this](uint64_t epoch, int32_t ring, const std::string& reason) {
    for (const auto& part : parts_) part->end(epoch, ring, reason);
  };
}

sched::StepEpochs& DividedSharing::epochs() {
  return group_ ? static_cast<sched::StepEpochs&>(*group_) : *remote_;
}

sched::EpochExchange& DividedSharing::exchange(int32_t ring) {
  return part(ring);
}

std::unique_ptr<tensor::ExpertExchange> DividedSharing::join(int32_t ring, StageId stage, uint32_t rank,
                                                             tensor::Backend& backend) {
  return part(ring).join(stage, rank, backend);
}

}  // namespace millrace::app
