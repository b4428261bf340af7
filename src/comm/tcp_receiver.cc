#include <array>
#include <boost/asio/dispatch.hpp>
#include <deque>

#include "async/channel.h"
#include "comm/tcp_end.h"

namespace millrace::comm {
namespace {

/// The receiving end: an inbox per kind, and the posted memory for the next activations. The data lane is read only for
/// a posted receive: early activations stay in the sockets and, once these are full, at the sender.
class TcpReceiveEnd final : public TcpEnd {
 public:
  TcpReceiveEnd(TcpLinkGroup& group, const LinkHello& hello, const TcpLinkOptions& options,
                const std::string& peer_address)
      : TcpEnd(group, hello, options, peer_address, false),
        inboxes_{make_inbox(MessageKind::kPlan), make_inbox(MessageKind::kActivations),
                 make_inbox(MessageKind::kOutput), make_inbox(MessageKind::kAcks)},
        posted_(runtime_) {}

  void post(PlanId plan, std::span<std::byte> target);
  [[nodiscard]] asio::awaitable<Message> receive(MessageKind kind);
  void close(std::string reason) override;
  void release() override { close("the receiver is gone"); }

 private:
  using Inbox = async::Channel<Message>;
  struct Posted {
    PlanId plan;
    std::span<std::byte> target;
  };
  void start_data() override { spawn("reads data", read_data(shared_from_this())); }
  [[nodiscard]] asio::awaitable<void> read_data(std::shared_ptr<TcpEnd>);
  [[nodiscard]] asio::awaitable<void> read_activations();
  [[nodiscard]] asio::awaitable<std::optional<Posted>> next_posted();
  void receive_message(const FrameHeader& header, std::vector<std::byte> bytes) override;
  bool handle_goodbye(const std::string& reason) override;
  void handle_end() override;
  /// Returns false for a message of an older epoch, and throws for one of a newer.
  [[nodiscard]] bool check_epoch(const FrameHeader& header);
  /// Delivers a frame's message as the last step, because a waiting receiver resumes within the call.
  void deliver(const FrameHeader& header, Payload payload);
  [[nodiscard]] Inbox make_inbox(MessageKind kind) { return {runtime_, max_waiting(kind, options_.window)}; }
  Inbox& inbox(MessageKind kind) { return inboxes_[static_cast<size_t>(kind)]; }

  std::array<Inbox, kMessageKindCount> inboxes_;
  std::deque<Posted> posts_;  // for which nothing has come yet; bounded by the user's memory
  async::WaitList posted_;    // a receive has been posted, or the link has ended
  bool data_ended_ = false;   // all activations have come
};

void TcpReceiveEnd::post(PlanId plan, std::span<std::byte> target) {
  if (ended_) return;
  posts_.push_back({plan, target});
  posted_.notify_all();
}

asio::awaitable<std::optional<TcpReceiveEnd::Posted>> TcpReceiveEnd::next_posted() {
  while (posts_.empty() && !ended_) co_await posted_.wait();
  if (ended_) co_return std::nullopt;
  const Posted posted = posts_.front();
  posts_.pop_front();
  co_return posted;
}

asio::awaitable<Message> TcpReceiveEnd::receive(MessageKind kind) {
  const auto self = shared_from_this();
  auto message = co_await inbox(kind).receive();
  if (!message) throw ErrorException(Error{ErrorCode::kUnavailable, reason_});
  co_return std::move(*message);
}

void TcpReceiveEnd::close(std::string reason) {
  closing_ = true;
  set_reason(reason);
  end(reason_);
  for (Inbox& each : inboxes_) {
    while (each.try_receive()) continue;
  }
}

bool TcpReceiveEnd::handle_goodbye(const std::string& reason) {
  set_reason(reason);
  begin_closing();
  for (const MessageKind kind : {MessageKind::kPlan, MessageKind::kOutput, MessageKind::kAcks}) inbox(kind).close();
  return data_ended_;
}

void TcpReceiveEnd::handle_end() {
  for (Inbox& each : inboxes_) each.close();
  posts_.clear();
  posted_.notify_all();
}

void TcpReceiveEnd::receive_message(const FrameHeader& header, std::vector<std::byte> bytes) {
  if (check_epoch(header)) deliver(header, Payload::own(std::move(bytes)));
}

asio::awaitable<void> TcpReceiveEnd::read_data(std::shared_ptr<TcpEnd>) {
  std::exception_ptr failure;
  try {
    co_await read_activations();
  } catch (...) {
    failure = std::current_exception();
  }
  data_ended_ = true;
  if (received_goodbye_) {
    end(reason_);
  } else if (failure) {
    co_await end_after_goodbye(describe_failure(failure));
  }
}

asio::awaitable<void> TcpReceiveEnd::read_activations() {
  FrameReader reader(data_, FrameLimits(Lane::kData, options_, true), counters_, silence_);
  while (!ended_) {
    const FrameHeader header = co_await reader.read_header();
    if (header.kind == FrameKind::kGoodbye) co_return;
    const bool current = check_epoch(header);
    if (!current) {
      co_await reader.skip(header.payload_bytes);
      continue;
    }
    const auto posted = co_await next_posted();
    if (!posted) co_return;
    if (posted->plan.value() != header.number || posted->target.size() != header.payload_bytes) {
      throw ErrorException(
          make_error(ErrorCode::kData, "activations of plan {}, {} bytes, where plan {}, {} bytes, was wanted",
                     header.number, header.payload_bytes, posted->plan.value(), posted->target.size()));
    }
    co_await reader.read(posted->target);
    deliver(header, Payload::share(posted->target, nullptr));
  }
}

bool TcpReceiveEnd::check_epoch(const FrameHeader& header) {
  if (header.epoch > hello_.epoch) {
    throw ErrorException(make_error(ErrorCode::kData, "{} message of epoch {} on a link of epoch {}",
                                    to_string(header.kind), header.epoch.value(), hello_.epoch.value()));
  }
  if (header.epoch == hello_.epoch) return true;
  counters_.messages_dropped.fetch_add(1, std::memory_order_relaxed);
  return false;
}

void TcpReceiveEnd::deliver(const FrameHeader& header, Payload payload) {
  if (ended_) return;
  counters_.messages_received.fetch_add(1, std::memory_order_relaxed);
  const MessageKind kind = *message_kind_of(header.kind);
  Message message{kind, header.epoch, PlanId(header.number), std::move(payload), runtime_.now()};
  if (!inbox(kind).hand_over(std::move(message))) {
    end(fmt::format("more {} messages from {} wait than the window allows", to_string(kind), peer_));
  }
}

class TcpReceiver final : public LinkReceiver {
 public:
  explicit TcpReceiver(std::shared_ptr<TcpReceiveEnd> end) : end_(std::move(end)) {}
  ~TcpReceiver() override {
    asio::dispatch(end_->runtime().executor(), [end = end_] { end->release(); });
  }

  [[nodiscard]] bool fills_posted() const override { return true; }
  void post(PlanId plan, std::span<std::byte> target) override { end_->post(plan, target); }
  asio::awaitable<Message> receive(MessageKind kind) override { return end_->receive(kind); }
  void close(std::string reason) override { end_->close(std::move(reason)); }
  [[nodiscard]] LinkStats stats() const override { return end_->stats(); }

 private:
  std::shared_ptr<TcpReceiveEnd> end_;
};

}  // namespace

Result<std::unique_ptr<LinkReceiver>> make_tcp_receiver(TcpLinkGroup& group, const LinkHello& hello,
                                                        const TcpLinkOptions& options, LanePair lanes) {
  auto end = std::make_shared<TcpReceiveEnd>(group, hello, options, lanes.peer_address());
  if (!end->open(std::move(lanes))) return Error{ErrorCode::kUnavailable, "the links of this thread are shut down"};
  return std::unique_ptr<LinkReceiver>(std::make_unique<TcpReceiver>(std::move(end)));
}

}  // namespace millrace::comm
