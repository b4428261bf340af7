#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "async/task_group.h"
#include "async/wait_list.h"
#include "cluster/messages.h"
#include "comm/silence_watch.h"

namespace millrace::cluster {

/// Returns text of an unknown peer in a form that is safe to log.
[[nodiscard]] std::string printable(const std::string& text);

struct ControlTiming {
  async::Duration ping_interval = std::chrono::milliseconds(250);
  async::Duration quiet_limit = std::chrono::milliseconds(1500);    ///< a peer that is silent longer is reported
  async::Duration silence_limit = std::chrono::milliseconds(1500);  ///< one that is silent even longer is given up
};

/// Bounds of what a connection takes: a longer message, or more of them that wait, ends it.
struct ControlBounds {
  size_t message_bytes = size_t{1} << 20;  ///< far above every message between nodes
  size_t queued = 1024;                    ///< messages, in each direction
};

/// A control connection: whole messages over TCP, with pings both ways. A dead peer is noticed at once and a silent one
/// within the limit. Used on one Runtime. Three tasks serve it (read, write, ping) until it ends. Its owner calls
/// close() and then awaits join() before destroying it.
class ControlConnection {
 public:
  ControlConnection(async::Runtime& runtime, asio::ip::tcp::socket socket, ControlTiming timing,
                    ControlBounds bounds = {});
  ~ControlConnection();
  ControlConnection(const ControlConnection&) = delete;
  ControlConnection& operator=(const ControlConnection&) = delete;

  void start();
  /// Replaces the bounds, once the peer is known.
  void set_bounds(ControlBounds bounds) { bounds_ = bounds; }
  /// Queues a message, which is dropped once the connection has ended.
  void send(const Message& message);
  /// Waits for the next message that is not a ping. Throws ErrorException (kUnavailable, with the reason) when the
  /// connection has ended and everything that came before has been taken.
  [[nodiscard]] asio::awaitable<Message> receive();
  /// Sets the callback for a peer that has been silent for the quiet limit (true) or is heard again (false). The
  /// silence limit ends the connection without it.
  void on_quiet(std::function<void(bool quiet)> callback) { on_quiet_ = std::move(callback); }
  /// Ends the connection after writing what is queued and a Goodbye, if the peer takes them within the quiet limit.
  void close(const std::string& reason);
  /// Returns whether the peer has sent a control message, and so is no other program.
  [[nodiscard]] bool received_message() const { return received_message_; }
  /// Returns whether the peer ended the connection with a Goodbye.
  [[nodiscard]] bool received_goodbye() const { return received_goodbye_; }
  [[nodiscard]] asio::awaitable<void> join() { co_await tasks_.join(); }
  [[nodiscard]] const std::string& peer() const { return peer_; }
  /// Returns the address at which other hosts find the peer.
  [[nodiscard]] const std::string& peer_host() const { return peer_host_; }

 private:
  [[nodiscard]] asio::awaitable<void> read_messages();
  [[nodiscard]] asio::awaitable<void> write_messages();
  [[nodiscard]] asio::awaitable<void> watch();
  void hear();
  void set_quiet(bool quiet);
  void end(const std::string& reason);

  async::Runtime& runtime_;
  asio::ip::tcp::socket socket_;
  const ControlTiming timing_;
  ControlBounds bounds_;
  std::string peer_;
  std::string peer_host_;
  async::TaskGroup tasks_;
  async::WaitList incoming_signal_;
  async::WaitList outgoing_signal_;
  async::WaitList ended_signal_;
  std::deque<Message> incoming_;
  std::deque<std::vector<std::byte>> outgoing_;
  std::string end_reason_;
  bool received_message_ = false;
  bool received_goodbye_ = false;
  bool closing_ = false;
  async::TimePoint close_deadline_;  // of closing_
  bool ended_ = false;
  comm::SilenceWatch quiet_watch_;
  comm::SilenceWatch silence_;
  bool quiet_ = false;
  std::function<void(bool)> on_quiet_;
};

}  // namespace millrace::cluster
