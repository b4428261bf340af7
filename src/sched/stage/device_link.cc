#include "sched/stage/device_link.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <deque>

#include "async/task_group.h"
#include "base/check.h"
#include "tensor/backend.h"

namespace millrace::sched {
namespace {

using comm::MessageKind;

/// The plan number of the message that carries a channel's id; no plan has it.
constexpr PlanId kIdNumber{UINT64_MAX};
/// Bytes of a channel's id.
constexpr size_t kIdBytes = 128;

std::string name_of(const DeviceLinkOptions& options) {
  return fmt::format("stage {} -> stage {}", options.from.value(), options.to.value());
}

std::string activations_of(PlanId plan) {
  return fmt::format("the activations of plan {}", plan.value());
}

tensor::ChannelOptions channel_options(const DeviceLinkOptions& options, bool sending, std::vector<std::byte> id,
                                       const async::Event& opened) {
  tensor::ChannelOptions channel;
  channel.sending = sending;
  channel.id = std::move(id);
  channel.name = name_of(options);
  channel.peer = fmt::format("stage {}", (sending ? options.to : options.from).value());
  channel.open_timeout = options.open_timeout;
  channel.transfer_timeout = options.transfer_timeout;
  channel.opened = [opened](std::exception_ptr failure) { opened.set(std::move(failure)); };
  return channel;
}

/// Returns a callback that closes the link between the hosts, and so ends the epoch, when the channel is lost.
template <class End>
std::function<void(std::exception_ptr)> close_host_link(async::Runtime& runtime,
                                                        const std::shared_ptr<End>& host_link) {
  return [executor = runtime.executor(), weak = std::weak_ptr<End>(host_link)](const std::exception_ptr& failure) {
    asio::post(executor, [weak, reason = async::describe(failure)] {
      if (const auto link = weak.lock()) link->close(reason);
    });
  };
}

class DeviceSender final : public comm::LinkSender {
 public:
  DeviceSender(async::Runtime& runtime, std::shared_ptr<comm::LinkSender> host_link,
               std::unique_ptr<tensor::DeviceChannel> channel)
      : runtime_(runtime), host_link_(std::move(host_link)), channel_(std::move(channel)) {}

  void send(MessageKind kind, RingEpoch epoch, PlanId plan, std::vector<std::byte> bytes) override {
    CHECK(kind != MessageKind::kActivations, "activations that are no device's on a link between devices");
    host_link_->send(kind, epoch, plan, std::move(bytes));
  }
  comm::Work send_borrowed(MessageKind kind, RingEpoch epoch, PlanId plan, std::span<const std::byte> bytes) override {
    if (kind != MessageKind::kActivations) return host_link_->send_borrowed(kind, epoch, plan, bytes);
    const async::Event released(runtime_);
    messages_.fetch_add(1, std::memory_order_relaxed);
    bytes_.fetch_add(bytes.size(), std::memory_order_relaxed);
    channel_->send(bytes, activations_of(plan),
                   [released](std::exception_ptr failure) { released.set(std::move(failure)); });
    return comm::Work(released);
  }
  void close(std::string reason) override {
    host_link_->close(reason);
    channel_->abort(std::move(reason));
  }
  [[nodiscard]] bool reads_device() const override { return true; }
  [[nodiscard]] comm::LinkStats stats() const override {
    comm::LinkStats stats = host_link_->stats();
    stats.messages_sent += messages_.load(std::memory_order_relaxed);
    stats.bytes_sent += bytes_.load(std::memory_order_relaxed);
    return stats;
  }

 private:
  async::Runtime& runtime_;
  const std::shared_ptr<comm::LinkSender> host_link_;
  const std::unique_ptr<tensor::DeviceChannel> channel_;
  std::atomic<uint64_t> messages_{0};
  std::atomic<uint64_t> bytes_{0};
};

class DeviceReceiver final : public comm::LinkReceiver {
 public:
  DeviceReceiver(async::Runtime& runtime, RingEpoch epoch, std::shared_ptr<comm::LinkReceiver> host_link,
                 std::unique_ptr<tensor::DeviceChannel> channel)
      : runtime_(runtime), epoch_(epoch), host_link_(std::move(host_link)), channel_(std::move(channel)) {}

  [[nodiscard]] bool fills_posted() const override { return true; }
  [[nodiscard]] bool fills_device() const override { return true; }
  void post(PlanId plan, std::span<std::byte> target) override;
  asio::awaitable<comm::Message> receive(MessageKind kind) override;
  void close(std::string reason) override {
    host_link_->close(reason);
    channel_->abort(std::move(reason));
  }
  [[nodiscard]] comm::LinkStats stats() const override {
    comm::LinkStats stats = host_link_->stats();
    stats.messages_received += messages_.load(std::memory_order_relaxed);
    stats.bytes_received += bytes_.load(std::memory_order_relaxed);
    return stats;
  }

 private:
  struct Posted {
    PlanId plan;
    std::span<std::byte> target;
    async::Event launched;
    std::shared_ptr<comm::Arrival> arrival;
  };

  async::Runtime& runtime_;
  const RingEpoch epoch_;
  const std::shared_ptr<comm::LinkReceiver> host_link_;
  const std::unique_ptr<tensor::DeviceChannel> channel_;
  std::deque<Posted> posts_;  // not received yet; bounded by the user's memory
  std::atomic<uint64_t> messages_{0};
  std::atomic<uint64_t> bytes_{0};
};

void DeviceReceiver::post(PlanId plan, std::span<std::byte> target) {
  const auto arrival = std::make_shared<comm::Arrival>(runtime_);
  const Posted& posted = posts_.emplace_back(plan, target, async::Event(runtime_), arrival);
  channel_->receive(
      target, activations_of(plan),
      [launched = posted.launched](std::exception_ptr failure) { launched.set(std::move(failure)); },
      [arrival, &runtime = runtime_](std::exception_ptr failure) {
        asio::post(runtime.executor(), [arrival, &runtime, failure = std::move(failure)] {
          arrival->at = runtime.now();
          arrival->event.set(failure);
        });
      });
}

asio::awaitable<comm::Message> DeviceReceiver::receive(MessageKind kind) {
  if (kind != MessageKind::kActivations) {
    comm::Message message = co_await host_link_->receive(kind);
    co_return message;
  }
  CHECK(!posts_.empty(), "activations arrived for which no receive was posted");
  const Posted posted = std::move(posts_.front());
  posts_.pop_front();
  co_await posted.launched.wait();
  messages_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(posted.target.size(), std::memory_order_relaxed);
  comm::Message message{kind, epoch_, posted.plan, comm::Payload::share(posted.target, nullptr)};
  message.arrival = posted.arrival;
  co_return message;
}

}  // namespace

asio::awaitable<std::unique_ptr<comm::LinkSender>> open_device_sender(async::Runtime& runtime, tensor::Backend& backend,
                                                                      std::unique_ptr<comm::LinkSender> host_link,
                                                                      DeviceLinkOptions options) {
  const std::shared_ptr<comm::LinkSender> link = std::move(host_link);
  std::vector<std::byte> id = backend.make_channel_id();
  CHECK(id.size() == kIdBytes, "a channel's id of {} bytes", id.size());
  link->send(MessageKind::kActivations, options.epoch, kIdNumber, id);
  const async::Event opened(runtime);
  tensor::ChannelOptions channel = channel_options(options, true, std::move(id), opened);
  channel.lost = close_host_link(runtime, link);
  auto end = backend.open_channel(std::move(channel));
  co_await opened.wait();
  co_return std::make_unique<DeviceSender>(runtime, link, std::move(end));
}

asio::awaitable<std::unique_ptr<comm::LinkReceiver>> open_device_receiver(async::Runtime& runtime,
                                                                          tensor::Backend& backend,
                                                                          std::unique_ptr<comm::LinkReceiver> host_link,
                                                                          DeviceLinkOptions options) {
  std::vector<std::byte> id(kIdBytes);
  const std::shared_ptr<comm::LinkReceiver> link = std::move(host_link);
  link->post(kIdNumber, id);
  const comm::Message first = co_await link->receive(MessageKind::kActivations);
  const auto found = first.payload.bytes();
  if (first.plan != kIdNumber || found.size() != kIdBytes) {
    throw ErrorException(make_error(ErrorCode::kData, "{}: {} bytes of plan {} came where a channel's id was wanted",
                                    name_of(options), found.size(), first.plan.value()));
  }
  const async::Event opened(runtime);
  tensor::ChannelOptions channel = channel_options(options, false, {found.begin(), found.end()}, opened);
  channel.lost = close_host_link(runtime, link);
  auto end = backend.open_channel(std::move(channel));
  co_await opened.wait();
  co_return std::make_unique<DeviceReceiver>(runtime, options.epoch, link, std::move(end));
}

}  // namespace millrace::sched
