#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "cluster/control_connection.h"
#include "cluster/messages.h"
#include "cluster/node_reports.h"
#include "comm/tcp_link.h"
#include "model/config.h"

namespace millrace::cluster {

/// Tracks the nodes of a ring as they connect and leave. It receives their hellos, refuses unfit ones with the reason,
/// sends assignments, and keeps what each node has reported. The first node is the coordinator's own and always there.
/// Owned by the coordinator, on its Runtime.
class NodeRoster {
 public:
  struct Node {
    std::shared_ptr<ControlConnection> connection;  // null: not connected, or the coordinator's own
    uint16_t ring_port = 0;
    std::optional<uint64_t> page_capacity;  // set: loaded, and measured since the last request for that
    uint64_t host_page_capacity = 0;
    uint32_t sequence_capacity = 0;
    uint16_t expert_port = 0;               // as Loaded says
    bool agreed = false;                    // its memory is known to hold the pools of the ring
    tensor::ChannelSupport first_channels;  // as in Loaded
    tensor::ChannelSupport last_channels;
    model::PageContents contents;  // as Loaded says
    RingEpoch joining{0};          // asked to join this epoch; 0: none
    bool ring_joined = false;
    bool quiet = false;  // silent for longer than ControlTiming::quiet_limit
  };

  /// Bounds of the connections that have not sent a hello: their number and their time.
  static constexpr size_t kMaxPendingConnections = 64;
  static constexpr async::Duration kHelloTimeout = std::chrono::seconds(2);

  /// `assignments`, by rank, and `config` outlive it. No node gets its assignment before send_assignments().
  NodeRoster(async::Runtime& runtime, const std::vector<Assignment>& assignments, const model::ModelConfig& config,
             ControlTiming timing);

  /// Listens at `address`, with the retries and errors of listen_as_head.
  [[nodiscard]] Result<void> listen(const comm::TcpEndpoint& address, const std::stop_token& stop);
  /// Returns the bound address, after listen().
  [[nodiscard]] std::string listening_host() const { return acceptor_->local_endpoint().address().to_string(); }
  /// Serves nodes until interrupt(), and returns when none is connected any more.
  [[nodiscard]] asio::awaitable<void> serve();
  /// Ends serve() and every wait here.
  void interrupt();
  /// Throws kAborted after interrupt().
  void check_interrupted() const;

  /// Sets the callback that gets the reason when a participating node is lost.
  void on_lost(std::function<void(const std::string& reason)> callback) { on_lost_ = std::move(callback); }
  /// Sets the callback that gets "forming: waiting for node 1 of 2 (stages 1 to 1)" whenever that changes; empty when
  /// no node is missing.
  void on_waiting(std::function<void(const std::string& what)> callback) { on_waiting_ = std::move(callback); }
  /// Sets the callback that gets the silent nodes whenever they change, such as "node 1 of 2 (stages 1 to 1) has been
  /// silent for 1.5 s". The text is empty when all nodes are heard.
  void on_quiet(std::function<void(const std::string& what)> callback) { on_quiet_ = std::move(callback); }
  /// Sets the callback for a node that has connected, which may differ from the one before.
  void on_arrival(std::function<void(uint32_t rank)> callback) { on_arrival_ = std::move(callback); }
  /// Sets the callback for a node that could not open the channel to `stage`.
  void on_lost_channel(std::function<void(StageId stage, const std::string& reason)> callback) {
    on_lost_channel_ = std::move(callback);
  }
  /// Declares the assignments final: connected nodes get theirs at once, later ones after their hello.
  void send_assignments();
  /// Sets the pools of the ring. A process that returns and has kept them counts as agreed.
  void set_pools(cache::PoolSizes pages) { pools_ = pages; }
  /// Returns whether every node is known to hold the pools of the ring.
  [[nodiscard]] bool agreed() const;
  void set_agreed(bool agreed);
  /// Makes all nodes free their pools and measure their memory, and returns when they have. Throws when interrupted.
  [[nodiscard]] asio::awaitable<void> measure_all();

  /// Waits until all nodes but the first are `ready`; the log names the missing ones and `what` they have to do.
  [[nodiscard]] asio::awaitable<void> wait_for_all(bool (*ready)(const Node&), const char* what);
  /// Waits until something has changed here or notify() is called; returns false when `deadline` comes first.
  [[nodiscard]] asio::awaitable<bool> wait_for_change(async::TimePoint deadline) {
    return changed_.wait_until(deadline);
  }
  void notify() { changed_.notify_all(); }

  [[nodiscard]] std::vector<Node>& nodes() { return nodes_; }
  [[nodiscard]] const std::vector<Node>& nodes() const { return nodes_; }
  /// Returns which participating node was lost since forget_lost(), and why; empty if none was.
  [[nodiscard]] const std::string& lost() const { return lost_; }
  void forget_lost() { lost_.clear(); }
  [[nodiscard]] NodeReports& reports() { return reports_; }
  [[nodiscard]] const NodeReports& reports() const { return reports_; }

 private:
  [[nodiscard]] asio::awaitable<void> accept_connections();
  [[nodiscard]] asio::awaitable<void> serve_node(std::shared_ptr<ControlConnection> connection);
  [[nodiscard]] asio::awaitable<Message> first_message(std::shared_ptr<ControlConnection> connection);
  [[nodiscard]] asio::awaitable<void> handle_messages(uint32_t rank, std::shared_ptr<ControlConnection> connection);
  [[nodiscard]] std::string refusal(const Hello& hello) const;
  void handle(uint32_t rank, const Message& message);
  void set_quiet(uint32_t rank, bool quiet);
  void report_quiet() const;
  void lose(uint32_t rank, const std::string& reason);

  async::Runtime& runtime_;
  const std::vector<Assignment>& assignments_;
  const model::ModelConfig& config_;
  const ControlTiming timing_;
  std::unique_ptr<asio::ip::tcp::acceptor> acceptor_;
  async::TaskGroup tasks_;
  std::list<std::shared_ptr<ControlConnection>> pending_connections_;  // without a hello so far
  bool rejects_connections_ = false;                                   // the bound is reached, which has been logged
  async::WaitList changed_;
  std::vector<Node> nodes_;  // by rank; the first has only the channel support of its last stage
  NodeReports reports_;
  std::function<void(const std::string&)> on_lost_;
  std::function<void(const std::string&)> on_waiting_;
  std::function<void(const std::string&)> on_quiet_;
  std::function<void(uint32_t)> on_arrival_;
  std::function<void(StageId, const std::string&)> on_lost_channel_;
  cache::PoolSizes pools_;  // zeros: not decided yet
  std::string lost_;
  bool assignments_sent_ = false;
  bool interrupted_ = false;
};

}  // namespace millrace::cluster
