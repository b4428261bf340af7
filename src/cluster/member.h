#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/control_connection.h"
#include "cluster/loader_thread.h"
#include "cluster/messages.h"
#include "cluster/peer_connector.h"
#include "cluster/reminder.h"
#include "cluster/stage_host.h"
#include "comm/collective/epoch_experts.h"
#include "comm/tcp_link.h"
#include "model/config.h"
#include "sched/stage/local_stages.h"

namespace millrace::cluster {

struct MemberOptions {
  comm::TcpEndpoint coordinator;  ///< --dist-init-addr
  uint32_t node_rank = 1;
  uint32_t node_count = 2;
  model::ModelConfig config;
  ControlTiming timing;
  async::Duration build_timeout = std::chrono::seconds(5);
  std::chrono::milliseconds transfer_timeout = std::chrono::seconds(60);  ///< of channels
};

/// A node other than the head's: it finds the coordinator, however late that starts, loads its assignment and joins
/// each epoch. It keeps its weights when the head goes and comes again. Owned by the worker process, on one Runtime.
class Member {
 public:
  Member(async::Runtime& runtime, MemberOptions options, StageHost& host);

  /// Runs until stop(). After a refusal it asks the coordinator again, at growing intervals.
  [[nodiscard]] asio::awaitable<void> run();
  /// Leaves the ring and ends run(). On the Runtime.
  void stop();
  /// Calls stop() as soon as the ring does not need this node. That is at once outside of an epoch or in an idle ring,
  /// and otherwise when the epoch ends or the ring becomes idle. A paused ring with running requests is not idle.
  /// `limit` bounds the wait. On the Runtime.
  [[nodiscard]] asio::awaitable<void> drain(async::Duration limit);

 private:
  /// Tries until the coordinator answers. Errors: kAborted.
  [[nodiscard]] asio::awaitable<Result<asio::ip::tcp::socket>> find_coordinator();
  /// Logs what the search for the head waits for, when that is new and again every few seconds.
  void log_wait(const std::string& what);
  /// Logs how a connection ended, unless the last one ended so too and less than a minute has passed.
  void log_end(const std::string& end);
  [[nodiscard]] asio::awaitable<std::string> serve(asio::ip::tcp::socket socket);
  void handle(Message message);
  void leave_cluster(const std::string& reason);
  [[nodiscard]] asio::awaitable<void> report_links(std::shared_ptr<ControlConnection> connection);
  [[nodiscard]] asio::awaitable<void> load(Assignment assignment);
  [[nodiscard]] asio::awaitable<void> measure();
  void report(Result<Loaded> loaded);
  [[nodiscard]] Result<uint16_t> listen_for_experts();
  [[nodiscard]] asio::awaitable<void> join(JoinRing request);
  [[nodiscard]] asio::awaitable<std::string> run_epoch(JoinRing request);
  [[nodiscard]] asio::awaitable<sched::OuterLinks> open_links(JoinRing request);
  void end_epoch(const std::string& reason);
  /// Returns whether this node is in an epoch whose ring has work or running requests.
  [[nodiscard]] bool is_needed() const { return in_epoch_ && stages_ != nullptr && stages_->busy(); }

  async::Runtime& runtime_;
  const MemberOptions options_;
  StageHost& host_;
  PeerConnector connector_;                      // to the coordinator
  Reminder wait_reminder_;                       // of log_wait, in this search
  std::unique_ptr<comm::TcpListener> listener_;  // for the link from the node before; while there is a connection
  std::unique_ptr<comm::EpochExperts> experts_;  // where the assignment shares experts with other rings
  LoaderThread loader_{runtime_};
  std::shared_ptr<ControlConnection> connection_;
  std::optional<Assignment> assignment_;
  sched::LocalStages* stages_ = nullptr;  // null while the StageHost makes them
  async::TaskGroup tasks_;                // of the connection: loading, the epoch
  async::WaitList stop_signal_;
  async::WaitList linking_;    // a link is open or has failed, or the epoch shall end
  std::string end_reason_;     // set: the epoch under way shall end
  StageId lost_channel_{0};    // of that epoch, as Stopped says
  bool has_joined_ = false;    // an epoch, on this connection
  bool in_epoch_ = false;      // from joining it to its end
  bool turned_away_ = false;   // refused by the head, or unable to run the assignment
  bool met_stranger_ = false;  // the last connection was to another program
  Reminder end_reminder_;      // of log_end
  bool stopping_ = false;
};

}  // namespace millrace::cluster
