#include "sim/simulated_link.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <utility>

#include "base/result.h"
#include "sim/max_duration.h"

namespace millrace::sim {
namespace {

using async::TimePoint;
using comm::MessageKind;

/// The sending end. Messages under way keep the inner sender alive through their timers, so that they arrive before the
/// link ends.
class SimulatedSender final : public comm::LinkSender {
 public:
  SimulatedSender(const SimulatedLinkOptions& options, async::Runtime& runtime, std::unique_ptr<comm::LinkSender> inner)
      : options_(options), runtime_(runtime), inner_(std::move(inner)) {
    lanes_.fill(runtime.now());
  }
  ~SimulatedSender() override { close("the sender is gone"); }

  void send(MessageKind kind, RingEpoch epoch, PlanId plan, std::vector<std::byte> bytes) override {
    if (!inner_) return;
    const TimePoint left = transmit(kind, bytes.size());
    const auto shared = std::make_shared<std::vector<std::byte>>(std::move(bytes));
    deliver(left, [inner = inner_, kind, epoch, plan, shared] { inner->send(kind, epoch, plan, std::move(*shared)); });
  }

  comm::Work send_borrowed(MessageKind kind, RingEpoch epoch, PlanId plan, std::span<const std::byte> bytes) override {
    if (!inner_) return {};
    const TimePoint left = transmit(kind, bytes.size());
    if (options_.keeps_bytes) {
      const auto copy = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
      deliver(left, [inner = inner_, kind, epoch, plan, copy] { inner->send(kind, epoch, plan, std::move(*copy)); });
    } else {
      deliver(left,
              [inner = inner_, kind, epoch, plan, bytes] { (void)inner->send_borrowed(kind, epoch, plan, bytes); });
    }
    const async::Event released(runtime_);
    runtime_.arm(left, [released] { released.set(); });
    return comm::Work(released);
  }

  void close(std::string reason) override {
    if (!inner_) return;
    const TimePoint last = *std::max_element(lanes_.begin(), lanes_.end());
    deliver(last, [inner = std::exchange(inner_, nullptr), reason = std::move(reason)] { inner->close(reason); });
  }

 private:
  /// Returns when the last byte has left.
  [[nodiscard]] TimePoint transmit(MessageKind kind, size_t bytes) {
    TimePoint& lane = lanes_[static_cast<size_t>(kind)];
    lane = std::max(lane, runtime_.now());
    if (options_.bytes_per_second > 0) {
      lane += clamped_duration(static_cast<double>(bytes) / options_.bytes_per_second * 1e9);
    }
    if (options_.delay) lane += options_.delay();
    if (options_.fault) {
      if (auto reason = options_.fault()) inner_->close(std::move(*reason));
    }
    return lane;
  }

  void deliver(TimePoint left, std::function<void()> callback) {
    runtime_.arm(left + options_.latency, std::move(callback));
  }

  const SimulatedLinkOptions options_;
  async::Runtime& runtime_;
  std::shared_ptr<comm::LinkSender> inner_;
  std::array<TimePoint, comm::kMessageKindCount> lanes_{};
};

/// The receiving end. It writes messages to posted memory when they are taken, with the checks of the TCP link.
class SimulatedReceiver final : public comm::LinkReceiver {
 public:
  explicit SimulatedReceiver(std::unique_ptr<comm::LinkReceiver> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] bool fills_posted() const override { return true; }
  void post(PlanId plan, std::span<std::byte> target) override { posts_.push_back({plan, target}); }
  asio::awaitable<comm::Message> receive(MessageKind kind) override {
    comm::Message message = co_await inner_->receive(kind);
    if (kind == MessageKind::kActivations) fill_posted(message);
    co_return message;
  }
  void close(std::string reason) override {
    posts_.clear();
    inner_->close(std::move(reason));
  }

 private:
  struct Posted {
    PlanId plan;
    std::span<std::byte> target;
  };

  void fill_posted(comm::Message& message) {
    const std::span<const std::byte> bytes = message.payload.bytes();
    const Posted posted = posts_.empty() ? Posted{} : posts_.front();
    if (posts_.empty() || posted.plan != message.plan || posted.target.size() != bytes.size()) {
      throw ErrorException(make_error(ErrorCode::kData,
                                      "activations of plan {}, {} bytes, where plan {}, {} bytes, was wanted",
                                      message.plan.value(), bytes.size(), posted.plan.value(), posted.target.size()));
    }
    posts_.pop_front();
    std::memcpy(posted.target.data(), bytes.data(), bytes.size());
    message.payload = comm::Payload::share(posted.target, nullptr);
  }

  std::unique_ptr<comm::LinkReceiver> inner_;
  std::deque<Posted> posts_;
};

}  // namespace

comm::Link make_simulated_link(const SimulatedLinkOptions& options, async::Runtime& sender, async::Runtime& receiver,
                               size_t capacity) {
  comm::Link inner = comm::make_in_process_link(sender, receiver, capacity);
  const bool is_plain = options.bytes_per_second == 0 && options.latency == async::Duration{};
  if (is_plain && !options.fault && !options.delay) return inner;
  if (options.keeps_bytes) inner.receiver = std::make_unique<SimulatedReceiver>(std::move(inner.receiver));
  return {std::make_unique<SimulatedSender>(options, sender, std::move(inner.sender)), std::move(inner.receiver)};
}

}  // namespace millrace::sim
