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

struct StageLinks;
class StageLoop;
class StageRunner;

/// What the ranks of one process share with others in one epoch. Links between these ranks are not set.
struct OuterLinks {
  std::vector<StageLinks> ranks;  ///< stage by stage
  /// The ends of the exchanges of a stage that has ranks elsewhere; empty: all are here.
  std::vector<std::unique_ptr<tensor::Collective>> collectives;
  /// The ranks' ends of the exchange of experts with other rings; empty: RingConfig::make_expert_exchange makes them,
  /// or the ring has all experts.
  std::vector<std::unique_ptr<tensor::ExpertExchange>> experts;
};

/// Hosts the stages of this process: neighbours in the ring with all of their ranks, or some ranks of one stage. Each
/// rank has its runner on its own Runtime, and links within the process. Each epoch is a set of stage loops around the
/// same runners; they end together, since a link that closes closes the next. Owned by the application, used on the
/// control Runtime. That and the ranks' Runtimes outlive it.
class LocalStages {
 public:
  using RunnerFactory = std::function<std::unique_ptr<StageRunner>(async::Runtime& runtime)>;

  /// The ranks of each stage that are here.
  struct Ranks {
    uint32_t first = 0;
    uint32_t count = 1;
  };
  /// Creates one rank per runtime and runner factory: some ranks of the stages `first`, first + 1, … of the ring, stage
  /// by stage. With several stages these are all of their ranks.
  LocalStages(async::Runtime& control, std::vector<async::Runtime*> rank_runtimes,
              const std::vector<RunnerFactory>& runners, StageId first, Ranks ranks, const RingConfig& shape);
  /// Creates all ranks of the stages.
  LocalStages(async::Runtime& control, std::vector<async::Runtime*> rank_runtimes,
              const std::vector<RunnerFactory>& runners, StageId first, const RingConfig& shape)
      : LocalStages(control, std::move(rank_runtimes), runners, first, {.first = 0, .count = shape.rank_count}, shape) {
  }
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
  /// Returns the counters of the ranks that have a page store, from any thread.
  [[nodiscard]] std::vector<cache::StageStoreStats> store_stats() const;
  /// Returns the counters of the ranks whose device can capture graphs, from any thread.
  [[nodiscard]] std::vector<StageGraphStats> graph_stats() const;
  /// Starts an epoch, after the join() of the one before. A rank's links belong to its Runtime. What the devices throw
  /// while their links are made passes through, and nothing runs then.
  void start(OuterLinks outer);
  /// Starts an epoch in which only the leaders of the first and of the last stage have links with others.
  void start(std::unique_ptr<comm::LinkReceiver> upstream, std::unique_ptr<comm::LinkSender> downstream);
  /// Returns when every loop of the epoch has ended.
  [[nodiscard]] asio::awaitable<void> join();
  /// Ends the epoch's loops, also those that wait for a neighbour on another node.
  void stop(const std::string& reason);
  /// Returns whether the ring needs these stages, from any thread: the newest plan of this epoch had slices or copies,
  /// or requests have slots, also while a pause holds them. An idle ring closes all slots and gets plans without work.
  [[nodiscard]] bool busy() const;
  /// Returns why the first loop that ended did.
  [[nodiscard]] const std::string& end_reason() const { return end_reason_; }
  /// Returns the owner of a rank's TCP links with other nodes, on its Runtime.
  [[nodiscard]] comm::TcpLinkGroup& tcp_links(size_t rank);
  /// Returns the counters of all TCP links, from any thread.
  [[nodiscard]] std::vector<comm::LinkStats> link_stats() const;
  /// Returns a rank's device, as StageRunner::channel_backend does.
  [[nodiscard]] tensor::Backend* backend(size_t rank);
  /// Returns RingConfig::exchange_bytes.
  [[nodiscard]] size_t exchange_bytes() const { return shape_.exchange_bytes; }
  /// Return the Runtimes of the first rank of the first and of the last stage.
  [[nodiscard]] async::Runtime& first_runtime();
  [[nodiscard]] async::Runtime& last_runtime();

 private:
  struct HostedRank;
  [[nodiscard]] HostedRank& last_leader();
  void add_inner_links(std::vector<StageLinks>& links);
  void link_leader(size_t leader, std::vector<StageLinks>& links);
  void set_expert_exchanges(std::vector<std::unique_ptr<tensor::ExpertExchange>> outer);
  void set_collectives(std::vector<std::unique_ptr<tensor::Collective>> outer);
  [[nodiscard]] std::unique_ptr<StageLoop> make_loop(HostedRank& host, StageLinks links);
  void start_loop(HostedRank& host, std::unique_ptr<StageLoop> loop);
  [[nodiscard]] asio::awaitable<void> run_loop(HostedRank& host);
  template <class End>
  [[nodiscard]] asio::awaitable<Result<std::unique_ptr<End>>> open_device_link(HostedRank& host,
                                                                               std::unique_ptr<End> host_link,
                                                                               DeviceLinkOptions options);

  async::Runtime& control_;
  const Ranks here_;
  const RingConfig shape_;
  std::vector<std::unique_ptr<HostedRank>> ranks_;  // stage by stage
  size_t running_ = 0;                              // loops that have not ended; on the control Runtime
  std::string end_reason_;
  async::WaitList ended_;
};

}  // namespace millrace::sched
