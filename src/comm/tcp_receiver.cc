#include <array>
#include <boost/asio/dispatch.hpp>

#include "async/channel.h"
#include "comm/buffer_pool.h"
#include "comm/tcp_end.h"

namespace millrace::comm {
namespace {

/// The receiving end: an inbox per kind, and a pool of buffers for activations.
class TcpReceiveEnd final : public TcpEnd {
 public:
  TcpReceiveEnd(TcpLinkGroup& home, const LinkHello& hello, const TcpLinkOptions& options,
                const std::string& peer_address)
      : TcpEnd(home, hello, options, peer_address, false),
        inboxes_{Inbox(runtime_, options.window), Inbox(runtime_, options.window), Inbox(runtime_, options.window)},
        // One is being filled and one computed on while the others wait.
        buffers_(options.window + 2) {}

  [[nodiscard]] asio::awaitable<Message> receive(MessageKind kind);
  void close(std::string reason) override;
  void release() override { close("the receiver is gone"); }

 private:
  using Inbox = async::Channel<Message>;
  void start_data() override { spawn("reads data", read_data(shared_from_this())); }
  [[nodiscard]] asio::awaitable<void> read_data(std::shared_ptr<TcpEnd>);
  [[nodiscard]] asio::awaitable<void> read_activations();
  [[nodiscard]] asio::awaitable<void> receive_message(FrameHeader header, FrameReader& reader) override;
  bool handle_goodbye(const std::string& reason) override;
  void handle_end() override;
  void deliver(const FrameHeader& header, Payload payload);
  Inbox& inbox(MessageKind kind) { return inboxes_[static_cast<size_t>(kind)]; }

  std::array<Inbox, kMessageKindCount> inboxes_;
  BufferPool buffers_;
  bool said_goodbye_ = false;   // on the control lane
  bool data_ended_ = false;     // all activations have come
};

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
  said_goodbye_ = true;
  set_reason(reason);
  inbox(MessageKind::kPlan).close();
  inbox(MessageKind::kOutput).close();
  return data_ended_;
}

void TcpReceiveEnd::handle_end() {
  for (Inbox& each : inboxes_) each.close();
}

asio::awaitable<void> TcpReceiveEnd::receive_message(FrameHeader header, FrameReader& reader) {
  std::vector<std::byte> bytes(header.payload_bytes);
  co_await reader.read(bytes);
  deliver(header, Payload::own(std::move(bytes)));
}

asio::awaitable<void> TcpReceiveEnd::read_data(std::shared_ptr<TcpEnd>) {
  std::exception_ptr failure;
  try {
    co_await read_activations();
  } catch (...) {
    failure = std::current_exception();
  }
  data_ended_ = true;
  if (said_goodbye_) {
    end(reason_);
  } else if (failure) {
    co_await lose(describe_failure(failure));
  }
}

asio::awaitable<void> TcpReceiveEnd::read_activations() {
  FrameReader reader(data_, FrameLimits(Lane::kData, options_, true), counters_);
  while (!ended_) {
    const FrameHeader header = co_await reader.read_header();
    if (header.kind == FrameKind::kGoodbye) co_return;
    auto buffer = buffers_.take(header.payload_bytes);
    const std::span<std::byte> bytes(buffer.get(), header.payload_bytes);
    co_await reader.read(bytes);
    deliver(header, Payload::share(bytes, std::move(buffer)));
  }
}

void TcpReceiveEnd::deliver(const FrameHeader& header, Payload payload) {
  if (ended_) return;
  if (header.generation < hello_.generation) {
    counters_.messages_dropped.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (header.generation > hello_.generation) {
    throw ErrorException(make_error(ErrorCode::kData, "{} message of generation {} on a link of generation {}",
                                    to_string(header.kind), header.generation.value(), hello_.generation.value()));
  }
  counters_.messages_received.fetch_add(1, std::memory_order_relaxed);
  const auto kind = static_cast<MessageKind>(header.kind);
  Message message{kind, header.generation, PlanId(header.number), std::move(payload), runtime_.now()};
  if (!inbox(kind).try_send(std::move(message))) {
    end(fmt::format("more {} messages from {} wait than the window allows", to_string(kind), peer_));
  }
}

class TcpReceiver final : public LinkReceiver {
 public:
  explicit TcpReceiver(std::shared_ptr<TcpReceiveEnd> end) : end_(std::move(end)) {}
  ~TcpReceiver() override {
    asio::dispatch(end_->runtime().executor(), [end = end_] { end->release(); });
  }

  asio::awaitable<Message> receive(MessageKind kind) override { return end_->receive(kind); }
  void close(std::string reason) override { end_->close(std::move(reason)); }
  [[nodiscard]] LinkStats stats() const override { return end_->stats(); }

 private:
  std::shared_ptr<TcpReceiveEnd> end_;
};

}  // namespace

Result<std::unique_ptr<LinkReceiver>> make_tcp_receiver(TcpLinkGroup& home, const LinkHello& hello,
                                                        const TcpLinkOptions& options, LanePair lanes) {
  auto end = std::make_shared<TcpReceiveEnd>(home, hello, options, lanes.peer_address());
  if (!end->open(std::move(lanes))) return Error{ErrorCode::kUnavailable, "the links of this thread are shut down"};
  return std::unique_ptr<LinkReceiver>(std::make_unique<TcpReceiver>(std::move(end)));
}

}  // namespace millrace::comm
