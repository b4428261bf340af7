#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>

#include "comm/frame_stream.h"
#include "comm/tcp_link.h"

namespace millrace::comm {

/// The common base of both ends of a link: the sockets, the control lane with its heartbeats, and the link's end. Its
/// coroutines run in the TcpLinkGroup's task group and share ownership of it. Everything happens on the group's
/// executor except open(), stats() and the constructor.
class TcpEnd : public std::enable_shared_from_this<TcpEnd> {
 public:
  TcpEnd(TcpLinkGroup& group, const LinkHello& hello, const TcpLinkOptions& options, const std::string& peer_address,
         bool sending);
  TcpEnd(const TcpEnd&) = delete;
  TcpEnd& operator=(const TcpEnd&) = delete;
  virtual ~TcpEnd() = default;

  /// Starts the coroutines over `lanes`, from any thread. Returns false when the group has been shut down.
  [[nodiscard]] bool open(LanePair lanes);
  /// Implements LinkSender::close and LinkReceiver::close.
  virtual void close(std::string reason) = 0;
  /// Acts as close() when the user destroys its end: no memory of the user is touched after the return.
  virtual void release() = 0;
  [[nodiscard]] LinkStats stats() const;
  [[nodiscard]] async::Runtime& runtime() { return runtime_; }

 protected:
  /// Starts the coroutine of the data lane.
  virtual void start_data() = 0;
  /// Takes a message that has arrived. Throws ErrorException (kData) for an impossible one.
  virtual void receive_message(const FrameHeader& header, std::vector<std::byte> bytes) = 0;
  /// Handles the peer's goodbye on the control lane. Returns true if it ends the link, and false if more is to come.
  virtual bool handle_goodbye(const std::string& reason) = 0;
  /// Releases everything that waits, after the sockets have been closed.
  virtual void handle_end() = 0;

  /// Ends the link at once for `reason`, and tells the peer if that needs no wait.
  void end(const std::string& reason);
  /// Acts as end() a moment later: the peer's goodbye, which says more, may be on its way on the control lane.
  [[nodiscard]] asio::awaitable<void> end_after_goodbye(std::string reason);
  /// Gives what was sent before some time to arrive.
  void begin_closing();
  /// Ends the control lane with a goodbye after what is queued.
  void say_goodbye();
  void set_reason(const std::string& reason);
  bool spawn(std::string_view task, asio::awaitable<void> body);
  [[nodiscard]] std::string describe_failure(const std::exception_ptr& failure) const;
  [[nodiscard]] FrameHeader header_of(FrameKind kind, uint64_t number, size_t payload_bytes) const;

  TcpLinkGroup& group_;
  async::Runtime& runtime_;
  const LinkHello hello_;
  const TcpLinkOptions options_;
  const std::string name_;  // "stage 0 -> stage 1"
  const std::string peer_;  // "stage 0 at 10.0.0.1:4000"
  const bool sending_;
  LinkCounters counters_;
  std::string reason_;             // why it ends; empty while open
  bool closing_ = false;           // either end has closed; what was sent before is on its way
  bool received_goodbye_ = false;  // the peer's, after which its control lane is silent
  bool ended_ = false;
  async::TimePoint close_deadline_;  // of closing_
  tcp::socket control_;
  tcp::socket data_;
  SilenceWatch silence_;  // of the peer, on both lanes
  FrameWriter control_writer_;

 private:
  using Self = std::shared_ptr<TcpEnd>;  // what a coroutine holds
  void start(LanePair lanes);
  [[nodiscard]] asio::awaitable<void> write_control(Self);
  [[nodiscard]] asio::awaitable<void> read_control(Self);
  [[nodiscard]] asio::awaitable<void> read_frames(FrameReader& reader);
  void note_round_trip(const FrameHeader& pong);
  [[nodiscard]] asio::awaitable<void> keep_heartbeat(Self);
  void send_ping(async::TimePoint now);
  void answer_ping(const FrameHeader& ping);
  void try_goodbye();

  async::WaitList ended_signal_;
};

/// Options of a link's socket; errors are ignored, since all of them only tune.
void tune_socket(tcp::socket& socket, Lane lane, const TcpLinkOptions& options);

/// Makes the sending end as its users see it. kUnavailable when the group has been shut down.
[[nodiscard]] Result<std::unique_ptr<LinkSender>> make_tcp_sender(TcpLinkGroup& group, const LinkHello& hello,
                                                                  const TcpLinkOptions& options, LanePair lanes);
[[nodiscard]] Result<std::unique_ptr<LinkReceiver>> make_tcp_receiver(TcpLinkGroup& group, const LinkHello& hello,
                                                                      const TcpLinkOptions& options, LanePair lanes);

}  // namespace millrace::comm
