#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>
#include <unordered_map>

#include "async/task_group.h"
#include "cluster/control_connection.h"
#include "cluster/peer_connector.h"
#include "cluster/reminder.h"
#include "cluster/remote/ring_host.h"
#include "comm/tcp_link.h"
#include "sched/head/engine.h"
#include "sched/steps/remote_step_group.h"

namespace millrace::cluster::remote {

struct RingServerOptions {
  comm::TcpEndpoint front;
  RingHello hello;
  ControlTiming timing;
  sched::RemoteStepGroup* steps = nullptr;  ///< of a ring that shares experts; outlives the server
  /// A time without common steps after which the rings that share experts have no work.
  async::Duration quiet_steps = std::chrono::seconds(1);
};

/// Serves the ring of this process to a front in another one: it connects to the front, again whenever the connection
/// ends, and passes requests to the engine. Requests of a front that is gone are aborted. Used on one Runtime. `engine`
/// and `host` outlive it.
class RingServer {
 public:
  RingServer(async::Runtime& runtime, RingServerOptions options, sched::Engine& engine, RingHost& host);

  /// Serves until stop().
  [[nodiscard]] asio::awaitable<void> run();
  /// Takes no more requests, lets those that run end for at most `limit`, and then stops. With shared experts those are
  /// the running requests of all rings that are not paused.
  [[nodiscard]] asio::awaitable<void> drain(async::Duration limit);
  /// Ends run(): requests that have not ended fail at the front.
  void stop();

 private:
  struct Request {
    std::string id;
    bool is_submitted = false;
    bool is_aborted = false;  // before it was submitted
  };
  using Connection = std::shared_ptr<ControlConnection>;

  [[nodiscard]] asio::awaitable<std::string> serve(asio::ip::tcp::socket socket);
  [[nodiscard]] asio::awaitable<void> handle_messages();
  void handle(Content content);
  void join_steps();
  void abort(uint64_t number);
  [[nodiscard]] asio::awaitable<void> step_along(async::TimePoint deadline);
  [[nodiscard]] asio::awaitable<void> run_request(SubmitRequest submit);
  [[nodiscard]] asio::awaitable<Result<void>> complete(sched::GenerateRequest& request);
  [[nodiscard]] asio::awaitable<void> flush(FlushRing wanted);
  [[nodiscard]] asio::awaitable<void> publish();
  [[nodiscard]] std::vector<std::byte> encode_state() const;
  void send_figures();
  void send(Content content) { connection_->send(RingMessage{encode(std::move(content))}); }
  void log_wait(const std::string& what);

  async::Runtime& runtime_;
  const RingServerOptions options_;
  sched::Engine& engine_;
  RingHost& host_;
  PeerConnector connector_;                         // to the front
  Connection connection_;                           // null: none
  std::unordered_map<uint64_t, Request> requests_;  // of the connection, by their numbers
  async::TaskGroup tasks_;                          // of the connection
  async::WaitList changed_;                         // a request has ended, the connection has, or stop() was called
  uint64_t newest_record_ = 0;                      // of those that the front has
  bool is_serving_ = false;                         // the front has welcomed the ring, and the connection lasts
  bool draining_ = false;
  bool stopping_ = false;
  Reminder reminder_;  // of log_wait
};

}  // namespace millrace::cluster::remote
