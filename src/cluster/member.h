#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "async/name_lookup.h"
#include "async/real_runtime.h"
#include "cluster/control_connection.h"
#include "cluster/messages.h"
#include "comm/tcp_link.h"
#include "model/config.h"
#include "sched/stage/local_stages.h"

namespace millrace::cluster {

/// The stages that a node hosts, as its Member sees them. Its functions block: they are called on a thread of its own,
/// one at a time, never while stages run.
class StageHost {
 public:
  virtual ~StageHost() = default;
  /// Loads the weights that the assignment wants, unless it holds just those already.
  [[nodiscard]] virtual Result<Loaded> load(const Assignment& assignment) = 0;
  /// After load(): the stages, whose control Runtime is the Member's, with pools of so many pages, in a ring with this
  /// fingerprint. The same arguments give the same stages; others make them anew, around the same weights.
  [[nodiscard]] virtual Result<sched::LocalStages*> stages(const Assignment& assignment, PoolSizes pages,
                                                           const std::string& fingerprint) = 0;
};

struct MemberOptions {
  comm::TcpEndpoint coordinator;  ///< --dist-init-addr
  uint32_t node_rank = 1;
  uint32_t node_count = 2;
  model::ModelConfig config;
  ControlTiming timing;
  async::Duration build_timeout = std::chrono::seconds(5);
  std::chrono::milliseconds transfer_timeout = std::chrono::seconds(60);  ///< of channels
};

/// A node other than the head's: finds the coordinator, however late that starts, loads what it is told, joins
/// epoch after epoch, and keeps its weights when the head goes and comes again. Lives on one Runtime.
class Member {
 public:
  Member(async::Runtime& runtime, MemberOptions options, StageHost& host);

  /// Runs until stop(). A coordinator that refuses this node is asked again, less and less often.
  [[nodiscard]] asio::awaitable<void> run();
  /// On the Runtime: leaves.
  void stop();

 private:
  /// To the neighbours, in one epoch; set when they stand or have failed.
  struct Links {
    std::optional<Result<std::unique_ptr<comm::LinkReceiver>>> receiver;
    std::optional<Result<std::unique_ptr<comm::LinkSender>>> sender;
  };

  [[nodiscard]] asio::awaitable<asio::ip::tcp::socket> find_coordinator();
  [[nodiscard]] asio::awaitable<Result<std::vector<asio::ip::tcp::endpoint>>> look_up_coordinator();
  [[nodiscard]] asio::awaitable<Result<void>> connect(asio::ip::tcp::socket& socket);
  /// Has the log say what the search for the head waits for, when that is new, and again every few seconds.
  void log_wait(const std::string& what);
  [[nodiscard]] asio::awaitable<std::string> serve(asio::ip::tcp::socket socket);
  void handle(Message message);
  void leave_cluster(const std::string& reason);
  [[nodiscard]] asio::awaitable<void> report_links(std::shared_ptr<ControlConnection> connection);
  template <class T>
  [[nodiscard]] asio::awaitable<Result<T>> run_on_loader(std::function<Result<T>()> work);
  [[nodiscard]] asio::awaitable<void> load(Assignment assignment);
  [[nodiscard]] asio::awaitable<void> join(JoinRing request);
  [[nodiscard]] asio::awaitable<std::string> run_epoch(JoinRing request);
  [[nodiscard]] asio::awaitable<Links> open_links(JoinRing request);
  [[nodiscard]] asio::awaitable<void> accept_upstream(JoinRing request, async::TimePoint deadline, Links& links);
  [[nodiscard]] asio::awaitable<void> connect_downstream(JoinRing request, async::TimePoint deadline, Links& links);
  void end_epoch(const std::string& reason);

  async::Runtime& runtime_;
  const MemberOptions options_;
  StageHost& host_;
  async::NameLookup coordinator_name_;           // of each try anew, since a host may get another address
  asio::ip::tcp::socket* connecting_ = nullptr;  // to the coordinator
  size_t tries_ = 0;
  std::string last_logged_wait_;                 // what log_wait said last, of this search
  async::TimePoint reminder_;                    // when it says so again
  std::unique_ptr<comm::TcpListener> listener_;  // for the link from the node before; while there is a connection
  async::IoThread loader_{"loader"};
  std::shared_ptr<ControlConnection> connection_;
  std::optional<Assignment> assignment_;
  sched::LocalStages* stages_ = nullptr;  // null while the host has them
  async::TaskGroup tasks_;                // of the connection: loading, the epoch
  async::WaitList stop_signal_;
  async::WaitList linking_;   // a link stands or has failed, or the epoch shall end
  std::string end_reason_;    // set: the epoch under way shall end
  StageId lost_channel_{0};   // of that epoch, as Stopped says
  bool has_joined_ = false;   // an epoch, on this connection
  bool turned_away_ = false;  // by the head, or unable to do what it asks for
  bool stopping_ = false;
};

}  // namespace millrace::cluster
