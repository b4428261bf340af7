#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <optional>
#include <string>

#include "async/real_runtime.h"
#include "cluster/control_connection.h"
#include "cluster/messages.h"
#include "comm/tcp_link.h"
#include "model/config.h"
#include "sched/local_stages.h"

namespace millrace::cluster {

/// The stages that a node hosts, as its Member sees them.
class StageHost {
 public:
  virtual ~StageHost() = default;
  /// Loads what the assignment says, unless just that is loaded already. Blocks: called on a thread of its own, never
  /// while stages run.
  [[nodiscard]] virtual Result<Loaded> load(const Assignment& assignment) = 0;
  /// After load(), on the Member's Runtime, which becomes the control Runtime: the stages with pools of so many pages,
  /// in a ring with this fingerprint. A later call with the same ones gives the same stages.
  [[nodiscard]] virtual Result<sched::LocalStages*> stages(const Assignment& assignment, PoolSizes pages,
                                                           const std::string& fingerprint) = 0;
};

struct MemberOptions {
  comm::TcpEndpoint coordinator;   ///< --dist-init-addr
  std::string listen_host = "0.0.0.0";
  uint32_t node_rank = 1;
  uint32_t node_count = 2;
  model::ModelConfig config;
  ControlTiming timing;
  async::Duration form_timeout = std::chrono::seconds(5);
  std::chrono::milliseconds transfer_timeout = std::chrono::seconds(60);  ///< of channels
};

/// A node other than the head's: finds the coordinator, however late that starts, loads what it is told, joins
/// generation after generation, and keeps its weights when the head goes and comes again. Lives on one Runtime.
class Member {
 public:
  Member(async::Runtime& runtime, MemberOptions options, StageHost& host);

  /// Runs until stop(). Throws ErrorException when the coordinator refuses this node for good.
  [[nodiscard]] asio::awaitable<void> run();
  /// On the Runtime: leaves.
  void stop();

 private:
  /// To the neighbours, in one generation; set when they stand or have failed.
  struct Links {
    std::optional<Result<std::unique_ptr<comm::LinkReceiver>>> receiver;
    std::optional<Result<std::unique_ptr<comm::LinkSender>>> sender;
  };

  [[nodiscard]] asio::awaitable<asio::ip::tcp::socket> find_coordinator();
  [[nodiscard]] asio::awaitable<std::string> serve(asio::ip::tcp::socket socket);
  [[nodiscard]] asio::awaitable<void> report_links(std::shared_ptr<ControlConnection> connection);
  [[nodiscard]] asio::awaitable<void> load(Assignment assignment);
  [[nodiscard]] asio::awaitable<void> join(Form form);
  [[nodiscard]] asio::awaitable<std::string> run_generation(Form form);
  [[nodiscard]] asio::awaitable<Links> link_up(Form form);
  [[nodiscard]] asio::awaitable<void> accept_upstream(Form form, async::TimePoint deadline, Links& links);
  [[nodiscard]] asio::awaitable<void> connect_downstream(Form form, async::TimePoint deadline, Links& links);
  void end_generation(const std::string& reason);

  async::Runtime& runtime_;
  const MemberOptions options_;
  StageHost& host_;
  std::unique_ptr<comm::TcpListener> listener_;
  std::unique_ptr<comm::TcpLinkGroup> upstream_links_;
  std::unique_ptr<comm::TcpLinkGroup> downstream_links_;
  async::IoThread loader_{"loader"};
  std::shared_ptr<ControlConnection> connection_;
  std::optional<Assignment> assignment_;
  sched::LocalStages* stages_ = nullptr;
  async::TaskGroup tasks_;               // of the connection: loading, the generation
  async::WaitList stop_signal_;
  async::WaitList linking_;              // a link stands or has failed, or the generation shall end
  std::string end_reason_;               // set: the generation under way shall end
  StageId lost_channel_{0};              // of that generation, as Stopped says
  bool stopping_ = false;
};

}  // namespace millrace::cluster
