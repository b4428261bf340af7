#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "async/task_group.h"
#include "base/result.h"
#include "async/wait_list.h"
#include "comm/link.h"
#include "comm/tcp_link.h"
#include "cache/cache_counts.h"
#include "sched/stage/device_link.h"
#include "sched/stage/graph_stats.h"
#include "sched/stage/ring_config.h"

namespace millrace::sched {

class StageRunner;

/// Hosts the stages of this process: neighbours in the ring, each with its runner on its own Runtime, linked in the
/// process. Each epoch is a set of stage loops around the same runners; they end together, since a link that closes
/// closes the next. Owned by the application, used on the control Runtime. That and the stages' Runtimes outlive it.
class LocalStages {
 public:
  using RunnerFactory = std::function<std::unique_ptr<StageRunner>(async::Runtime& runtime)>;

  /// Creates one stage per runtime and runner factory: the stages `first`, first + 1, … of the ring.
  LocalStages(async::Runtime& control, std::vector<async::Runtime*> stage_runtimes,
              const std::vector<RunnerFactory>& runners, StageId first, const RingConfig& shape);
  ~LocalStages();

  /// Returns the channel support of the first stage's device, or of the last one's.
  [[nodiscard]] tensor::ChannelSupport first_channels();
  [[nodiscard]] tensor::ChannelSupport last_channels();
  /// Adds a channel for activations to the link to a neighbour on another node, before start(). Errors: kUnavailable
  /// when it cannot be opened; kAborted when the wait is cancelled, or stop() or the end of the link comes first.
  [[nodiscard]] asio::awaitable<Result<std::unique_ptr<comm::LinkReceiver>>> add_channel(
      std::unique_ptr<comm::LinkReceiver> upstream, DeviceLinkOptions options);
  [[nodiscard]] asio::awaitable<Result<std::unique_ptr<comm::LinkSender>>> add_channel(
      std::unique_ptr<comm::LinkSender> downstream, DeviceLinkOptions options);
  /// Returns the counters of the stages that have a page store, from any thread.
  [[nodiscard]] std::vector<cache::StageStoreStats> store_stats() const;
  /// Returns the counters of the stages whose device can capture graphs, from any thread.
  [[nodiscard]] std::vector<StageGraphStats> graph_stats() const;
  /// Starts an epoch, after the join() of the one before. `upstream` belongs to the first stage's Runtime, `downstream`
  /// to the last one's.
  void start(std::unique_ptr<comm::LinkReceiver> upstream, std::unique_ptr<comm::LinkSender> downstream);
  /// Returns when every loop of the epoch has ended.
  [[nodiscard]] asio::awaitable<void> join();
  /// Ends the epoch's loops, also those that wait for a neighbour on another node.
  void stop(const std::string& reason);
  /// Returns whether the newest plan of this epoch had work, from any thread: slices, or copies to make. An idle ring
  /// gets plans without.
  [[nodiscard]] bool busy() const;
  /// Returns why the first loop that ended did.
  [[nodiscard]] const std::string& end_reason() const { return end_reason_; }
  /// Own the TCP links to neighbours on other nodes, on the first and on the last stage's Runtime.
  [[nodiscard]] comm::TcpLinkGroup& upstream_links() { return upstream_links_; }
  [[nodiscard]] comm::TcpLinkGroup& downstream_links() { return downstream_links_; }
  [[nodiscard]] async::Runtime& first_runtime();
  [[nodiscard]] async::Runtime& last_runtime();

 private:
  struct HostedStage;
  [[nodiscard]] asio::awaitable<void> run_loop(HostedStage& host);
  template <class End>
  [[nodiscard]] asio::awaitable<Result<std::unique_ptr<End>>> open_device_link(HostedStage& host,
                                                                               std::unique_ptr<End> host_link,
                                                                               DeviceLinkOptions options);

  async::Runtime& control_;
  const StageId first_;
  const RingConfig shape_;
  std::vector<std::unique_ptr<HostedStage>> hosted_stages_;
  comm::TcpLinkGroup upstream_links_;
  comm::TcpLinkGroup downstream_links_;
  size_t running_ = 0;  // loops that have not ended; on the control Runtime
  std::string end_reason_;
  async::WaitList ended_;
};

}  // namespace millrace::sched
