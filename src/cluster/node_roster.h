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

/// The nodes of a ring as they come and go: hears their hellos, refuses by name those that do not fit, tells each what
/// to load, and keeps what each has said since. The first is the coordinator's own and always there. Owned by the
/// coordinator, on its Runtime.
class NodeRoster {
 public:
  struct Node {
    std::shared_ptr<ControlConnection> connection;  // null: not there, or the coordinator's own
    uint16_t ring_port = 0;
    std::optional<uint64_t> page_capacity;  // set: loaded
    tensor::ChannelSupport first_channels;  // as Loaded says
    tensor::ChannelSupport last_channels;
    std::vector<std::string> stages;  // as Loaded says
    RingEpoch joining{0};             // asked to join this epoch; 0: none
    bool ring_joined = false;
  };

  /// Connections that have not said hello: how many there may be, and for how long.
  static constexpr size_t kMaxPendingConnections = 64;
  static constexpr async::Duration kHelloTimeout = std::chrono::seconds(2);

  /// `assignments`, by rank, and `config` outlive it; nobody is told of them before send_assignments().
  NodeRoster(async::Runtime& runtime, const std::vector<Assignment>& assignments, const model::ModelConfig& config,
             ControlTiming timing);

  /// As listen_as_head.
  [[nodiscard]] Result<void> listen(const comm::TcpEndpoint& address, const std::stop_token& stop);
  /// After listen(): the address that was bound.
  [[nodiscard]] std::string listening_host() const { return acceptor_->local_endpoint().address().to_string(); }
  /// Until interrupt(): hears nodes. Returns when none is connected any more.
  [[nodiscard]] asio::awaitable<void> serve();
  /// Ends serve() and every wait here.
  void interrupt();
  /// Throws kAborted after interrupt().
  void check_interrupted() const;

  /// Called when a node that takes part is lost, with what happened.
  void on_lost(std::function<void(const std::string& reason)> callback) { on_lost_ = std::move(callback); }
  /// Called with "forming: waiting for node 1 of 2 (stages 1 to 1)" whenever that has changed; empty: for nobody.
  void on_waiting(std::function<void(const std::string& what)> callback) { on_waiting_ = std::move(callback); }
  /// Called when a node has come, which may be another one than before.
  void on_arrival(std::function<void(uint32_t rank)> callback) { on_arrival_ = std::move(callback); }
  /// Called when a node could not open the channel to `stage`.
  void on_lost_channel(std::function<void(StageId stage, const std::string& reason)> callback) {
    on_lost_channel_ = std::move(callback);
  }
  /// What `assignments` say is decided: nodes are told so, those that have come before at once.
  void send_assignments();
  /// From now on a node has to hold so many pages; one that has come and does not is told to go.
  void require_pages(uint64_t pages);

  /// From now on the stages of a node have to be made from the same as these, by rank.
  void require_stages(std::vector<std::vector<std::string>> stages) { required_stages_ = std::move(stages); }

  /// Until all nodes but the first are `ready`; the log names the others as those that are waited for to do `what`.
  [[nodiscard]] asio::awaitable<void> wait_for_all(bool (*ready)(const Node&), const char* what);
  /// Until something has changed here or notify() is called; false when `deadline` came first.
  [[nodiscard]] asio::awaitable<bool> wait_for_change(async::TimePoint deadline) {
    return changed_.wait_until(deadline);
  }
  void notify() { changed_.notify_all(); }

  [[nodiscard]] std::vector<Node>& nodes() { return nodes_; }
  /// A node that took part and is lost since forget_lost(), and why; empty: none.
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
  [[nodiscard]] bool check_room(Node& node, uint64_t page_capacity) const;
  void lose(uint32_t rank, const std::string& reason);

  async::Runtime& runtime_;
  const std::vector<Assignment>& assignments_;
  const model::ModelConfig& config_;
  const ControlTiming timing_;
  std::unique_ptr<asio::ip::tcp::acceptor> acceptor_;
  async::TaskGroup tasks_;
  std::list<std::shared_ptr<ControlConnection>> pending_connections_;  // that have not said hello
  bool rejects_connections_ = false;  // as many as may be are there, and the log says so
  async::WaitList changed_;
  std::vector<Node> nodes_;  // by rank; of the first, what its last stage offers
  NodeReports reports_;
  std::function<void(const std::string&)> on_lost_;
  std::function<void(const std::string&)> on_waiting_;
  std::function<void(uint32_t)> on_arrival_;
  std::function<void(StageId, const std::string&)> on_lost_channel_;
  uint64_t required_pages_ = 0;
  std::vector<std::vector<std::string>> required_stages_;  // empty: any
  std::string lost_;
  bool assignments_sent_ = false;
  bool interrupted_ = false;
};

}  // namespace millrace::cluster
