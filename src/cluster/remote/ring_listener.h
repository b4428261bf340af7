#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <list>
#include <memory>
#include <stop_token>
#include <vector>

#include "async/task_group.h"
#include "cluster/control_connection.h"
#include "cluster/remote/remote_engine.h"
#include "comm/tcp_link.h"
#include "sched/steps/step_server.h"

namespace millrace::cluster::remote {

/// Accepts the heads of rings in other processes and serves their connections, on one Runtime. A ring that differs from
/// the front's own, or whose number is taken, is refused by name on both sides. Owned by the app, as the engines, which
/// outlive it.
class RingListener {
 public:
  /// `steps`: where the rings share experts with those of this process; outlives the listener. Null: they do not.
  RingListener(async::Runtime& runtime, std::vector<RemoteEngine*> engines, ControlTiming timing,
               sched::StepGroup* steps = nullptr);

  /// Listens at `address`, with the retries and errors of listen_as_head.
  [[nodiscard]] Result<void> listen(const comm::TcpEndpoint& address, const std::stop_token& stop);
  /// Serves rings with these facts until stop(), and returns when none is connected any more.
  [[nodiscard]] asio::awaitable<void> serve(RingFacts facts);
  /// Ends serve().
  void stop();
  /// Returns the port, after listen().
  [[nodiscard]] uint16_t port() const { return acceptor_->local_endpoint().port(); }

 private:
  using Connection = std::shared_ptr<ControlConnection>;
  [[nodiscard]] asio::awaitable<void> accept_rings();
  [[nodiscard]] asio::awaitable<void> serve_ring(Connection connection);
  [[nodiscard]] asio::awaitable<RemoteEngine*> welcome(Connection connection);
  [[nodiscard]] asio::awaitable<void> handle_messages(Connection connection, RemoteEngine& engine,
                                                      sched::StepServer* steps);
  [[nodiscard]] std::unique_ptr<sched::StepServer> make_step_server(const Connection& connection, uint32_t ring);
  [[nodiscard]] Result<RemoteEngine*> check(const RingHello& hello) const;

  async::Runtime& runtime_;
  const std::vector<RemoteEngine*> engines_;
  const ControlTiming timing_;
  sched::StepGroup* const steps_;
  RingFacts facts_;
  std::unique_ptr<asio::ip::tcp::acceptor> acceptor_;
  std::list<Connection> connections_;
  async::TaskGroup tasks_;
  async::WaitList stop_signal_;
  bool stopping_ = false;
};

}  // namespace millrace::cluster::remote
