#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <deque>
#include <memory>
#include <string>

#include "async/task_group.h"
#include "async/wait_list.h"
#include "cluster/messages.h"
#include "comm/silence_watch.h"

namespace millrace::cluster {

struct ControlTiming {
  async::Duration ping_interval = std::chrono::milliseconds(250);
  async::Duration silence_limit = std::chrono::milliseconds(1500);
};

/// One control connection: whole messages over TCP, with pings both ways, so that a peer that dies is noticed at once
/// and one that falls silent within the limit. Used on one Runtime. Three tasks serve it (read, write, ping) until it
/// ends; whoever owns it calls close() and then awaits join() before it is destroyed.
class ControlConnection {
 public:
  ControlConnection(async::Runtime& runtime, asio::ip::tcp::socket socket, ControlTiming timing);
  ~ControlConnection();
  ControlConnection(const ControlConnection&) = delete;
  ControlConnection& operator=(const ControlConnection&) = delete;

  void start();
  /// Queues a message; dropped once the connection has ended.
  void send(const Message& message);
  /// The next message that is not a ping. Throws ErrorException (kUnavailable, with the reason) when the connection has
  /// ended and everything that came before is taken.
  [[nodiscard]] asio::awaitable<Message> receive();
  /// Ends the connection: what is queued is written, a Goodbye last, if the peer takes it within the silence limit.
  void close(const std::string& reason);
  /// Whether the peer has ended it, with a reason.
  [[nodiscard]] bool received_goodbye() const { return received_goodbye_; }
  [[nodiscard]] asio::awaitable<void> join() { co_await tasks_.join(); }
  [[nodiscard]] const std::string& peer() const { return peer_; }
  /// Where other hosts find the peer.
  [[nodiscard]] const std::string& peer_host() const { return peer_host_; }

 private:
  [[nodiscard]] asio::awaitable<void> read_messages();
  [[nodiscard]] asio::awaitable<void> write_messages();
  [[nodiscard]] asio::awaitable<void> watch();
  void end(const std::string& reason);

  async::Runtime& runtime_;
  asio::ip::tcp::socket socket_;
  const ControlTiming timing_;
  std::string peer_;
  std::string peer_host_;
  async::TaskGroup tasks_;
  async::WaitList incoming_signal_;
  async::WaitList outgoing_signal_;
  async::WaitList ended_signal_;
  std::deque<Message> incoming_;
  std::deque<std::vector<std::byte>> outgoing_;
  std::string end_reason_;
  bool received_goodbye_ = false;
  bool closing_ = false;
  async::TimePoint close_deadline_;  // of closing_
  bool ended_ = false;
  comm::SilenceWatch silence_;
};

}  // namespace millrace::cluster
