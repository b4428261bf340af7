#include <boost/asio/dispatch.hpp>

#include "comm/tcp_end.h"

namespace millrace::comm {
namespace {

/// The sending end: activations go to the data lane, everything else to the control lane.
class TcpSendEnd final : public TcpEnd {
 public:
  TcpSendEnd(TcpLinkGroup& group, const LinkHello& hello, const TcpLinkOptions& options,
             const std::string& peer_address)
      : TcpEnd(group, hello, options, peer_address, true), data_writer_(runtime_, data_, counters_) {}

  void send(MessageKind kind, RingEpoch epoch, PlanId plan, Payload payload, bool borrowed);
  void close(std::string reason) override;
  void release() override;

 private:
  void start_data() override { spawn("writes data", write_data(shared_from_this())); }
  [[nodiscard]] asio::awaitable<void> write_data(std::shared_ptr<TcpEnd>);
  void receive_message(const FrameHeader&, std::vector<std::byte>) override {}
  bool handle_goodbye(const std::string& reason) override {
    end(closing_ ? reason_ : fmt::format("{} closed the link: {}", peer_, reason));
    return true;
  }
  void handle_end() override { data_writer_.abandon(); }
  FrameWriter& writer_of(MessageKind kind) { return lane_of(kind) == Lane::kData ? data_writer_ : control_writer_; }

  FrameWriter data_writer_;
};

void TcpSendEnd::send(MessageKind kind, RingEpoch epoch, PlanId plan, Payload payload, bool borrowed) {
  if (ended_ || closing_) return;
  FrameWriter& writer = writer_of(kind);
  const FrameKind frame_kind = frame_kind_of(kind);
  const size_t waiting = writer.waiting(frame_kind);
  if (waiting >= max_waiting(kind, options_.window)) {
    end(fmt::format("more {} messages wait to be sent to {} than the window allows", to_string(kind), peer_));
    return;
  }
  if (waiting + 1 > counters_.send_queue_high_water) counters_.send_queue_high_water = waiting + 1;
  FrameHeader header = header_of(frame_kind, plan.value(), payload.bytes().size());
  header.epoch = epoch;
  writer.push(header, std::move(payload), borrowed);
}

void TcpSendEnd::close(std::string reason) {
  if (ended_ || closing_) return;
  set_reason(reason);
  begin_closing();
  // Each lane gets a goodbye: the reason does not wait for activations that the receiver has no room for yet.
  say_goodbye();
  data_writer_.push(header_of(FrameKind::kGoodbye, 0, 0));
  data_writer_.finish();
}

void TcpSendEnd::release() {
  close("the sender is gone");
  if (ended_ || !data_writer_.holds_borrowed()) return;
  boost::system::error_code ignored;
  data_.close(ignored);
  data_writer_.abandon();
}

asio::awaitable<void> TcpSendEnd::write_data(std::shared_ptr<TcpEnd>) {
  std::exception_ptr failure;
  try {
    co_await data_writer_.run();
  } catch (...) {
    failure = std::current_exception();
  }
  if (ended_) co_return;
  if (closing_) {
    boost::system::error_code ignored;
    data_.shutdown(tcp::socket::shutdown_send, ignored);
    co_return;
  }
  co_await end_after_goodbye(describe_failure(failure));
}

class TcpSender final : public LinkSender {
 public:
  explicit TcpSender(std::shared_ptr<TcpSendEnd> end) : end_(std::move(end)) {}
  ~TcpSender() override {
    asio::dispatch(end_->runtime().executor(), [end = end_] { end->release(); });
  }

  void send(MessageKind kind, RingEpoch epoch, PlanId plan, std::vector<std::byte> bytes) override {
    end_->send(kind, epoch, plan, Payload::own(std::move(bytes)), false);
  }
  Work send_borrowed(MessageKind kind, RingEpoch epoch, PlanId plan, std::span<const std::byte> bytes) override {
    if (lane_of(kind) == Lane::kControl) {  // small, and the control lane outlives the user's memory
      end_->send(kind, epoch, plan, Payload::own({bytes.begin(), bytes.end()}), false);
      return {};
    }
    async::Event released(end_->runtime());
    end_->send(kind, epoch, plan, Payload::borrow(bytes, released), true);
    return Work(std::move(released));
  }
  void close(std::string reason) override { end_->close(std::move(reason)); }
  [[nodiscard]] LinkStats stats() const override { return end_->stats(); }

 private:
  std::shared_ptr<TcpSendEnd> end_;
};

}  // namespace

Result<std::unique_ptr<LinkSender>> make_tcp_sender(TcpLinkGroup& group, const LinkHello& hello,
                                                    const TcpLinkOptions& options, LanePair lanes) {
  auto end = std::make_shared<TcpSendEnd>(group, hello, options, lanes.peer_address());
  if (!end->open(std::move(lanes))) return Error{ErrorCode::kUnavailable, "the links of this thread are shut down"};
  return std::unique_ptr<LinkSender>(std::make_unique<TcpSender>(std::move(end)));
}

}  // namespace millrace::comm
