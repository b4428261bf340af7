#include "sched/stage/local_stages.h"

#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/system/system_error.hpp>
#include <optional>

#include "base/check.h"
#include "sched/stage/stage_loop.h"
#include "tensor/backend.h"

namespace millrace::sched {

struct LocalStages::HostedRank {
  HostedRank(async::Runtime& its_runtime, std::unique_ptr<StageRunner> its_runner, StageId its_stage,
             tensor::RankPosition its_position)
      : runtime(its_runtime),
        runner(std::move(its_runner)),
        stage(its_stage),
        position(its_position),
        links(its_runtime),
        tasks(its_runtime),
        channel_tasks(its_runtime) {}
  async::Runtime& runtime;
  std::unique_ptr<StageRunner> runner;
  const StageId stage;
  const tensor::RankPosition position;
  comm::TcpLinkGroup links;
  async::TaskGroup tasks;
  async::TaskGroup channel_tasks;   // open channels
  std::unique_ptr<StageLoop> loop;  // on its Runtime
  std::atomic<bool> busy{false};    // StageLoopOptions::busy
};

LocalStages::LocalStages(async::Runtime& control, std::vector<async::Runtime*> rank_runtimes,
                         const std::vector<RunnerFactory>& runners, StageId first, Ranks ranks, const RingConfig& shape)
    : control_(control), here_(ranks), shape_(shape), ended_(control) {
  CHECK(!runners.empty() && rank_runtimes.size() == runners.size() && runners.size() % here_.count == 0);
  CHECK(here_.count == shape.rank_count || runners.size() == here_.count, "several stages without some of their ranks");
  for (size_t i = 0; i < runners.size(); ++i) {
    const StageId stage(first.value() + static_cast<uint32_t>(i / here_.count));
    const tensor::RankPosition position{.rank = static_cast<int32_t>(here_.first + i % here_.count),
                                        .size = static_cast<int32_t>(shape.rank_count)};
    ranks_.push_back(std::make_unique<HostedRank>(*rank_runtimes[i], runners[i](*rank_runtimes[i]), stage, position));
  }
}

LocalStages::~LocalStages() {
  CHECK(running_ == 0, "{} stage loops are still running", running_);
}

bool LocalStages::busy() const {
  return ranks_.front()->busy.load(std::memory_order_relaxed);
}

LocalStages::HostedRank& LocalStages::last_leader() {
  return *ranks_[ranks_.size() - here_.count];
}

comm::TcpLinkGroup& LocalStages::tcp_links(size_t rank) {
  return ranks_[rank]->links;
}

tensor::Backend* LocalStages::backend(size_t rank) {
  return ranks_[rank]->runner->channel_backend();
}

async::Runtime& LocalStages::first_runtime() {
  return ranks_.front()->runtime;
}

async::Runtime& LocalStages::last_runtime() {
  return last_leader().runtime;
}

void LocalStages::start(std::unique_ptr<comm::LinkReceiver> upstream, std::unique_ptr<comm::LinkSender> downstream) {
  OuterLinks outer;
  outer.ranks.resize(ranks_.size());
  outer.ranks.front().upstream = std::move(upstream);
  outer.ranks[ranks_.size() - here_.count].downstream = std::move(downstream);
  start(std::move(outer));
}

void LocalStages::start(OuterLinks outer) {
  CHECK(running_ == 0, "an epoch starts while {} loops of the last one run", running_);
  CHECK(outer.ranks.size() == ranks_.size());
  // All of these may throw, as a lost device does, before anything runs.
  set_collectives(std::move(outer.collectives));
  set_expert_exchanges(std::move(outer.experts));
  add_inner_links(outer.ranks);
  std::vector<std::unique_ptr<StageLoop>> loops;
  for (size_t i = 0; i < ranks_.size(); ++i) loops.push_back(make_loop(*ranks_[i], std::move(outer.ranks[i])));
  running_ = ranks_.size();
  end_reason_.clear();
  for (size_t i = 0; i < ranks_.size(); ++i) start_loop(*ranks_[i], std::move(loops[i]));
}

/// Gives each rank its end of the exchange of experts with other rings, if there is one.
void LocalStages::set_expert_exchanges(std::vector<std::unique_ptr<tensor::ExpertExchange>> outer) {
  if (outer.empty() && shape_.make_expert_exchange) {
    for (const auto& host : ranks_) {
      const auto rank = static_cast<uint32_t>(host->position.rank);
      outer.push_back(shape_.make_expert_exchange(host->stage, rank, host->runner->channel_backend()));
    }
  }
  for (size_t i = 0; i < outer.size(); ++i) ranks_[i]->runner->set_expert_exchange(std::move(outer[i]));
}

/// Gives each rank its end of the exchanges in its stage, which are made here unless some ranks are elsewhere.
void LocalStages::set_collectives(std::vector<std::unique_ptr<tensor::Collective>> outer) {
  if (shape_.rank_count == 1) return;
  for (size_t first = 0; first < ranks_.size(); first += here_.count) {
    const auto ranks = std::span(ranks_).subspan(first, here_.count);
    if (here_.count == shape_.rank_count) {
      std::vector<tensor::Backend*> backends;
      for (const auto& host : ranks) backends.push_back(host->runner->channel_backend());
      outer = shape_.make_collectives(ranks.front()->stage, backends);
    }
    for (size_t i = 0; i < ranks.size(); ++i) ranks[i]->runner->set_collective(std::move(outer[i]));
  }
}

/// Adds the links between ranks of this process: those from stage to stage, a chain per rank, and those within a stage.
void LocalStages::add_inner_links(std::vector<StageLinks>& links) {
  for (size_t i = 0; i + here_.count < ranks_.size(); ++i) {
    const size_t next = i + here_.count;
    comm::Link to_next = shape_.make_link(ranks_[i]->runtime, ranks_[next]->runtime, shape_.window + 1);
    links[i].downstream = std::move(to_next.sender);
    links[next].upstream = std::move(to_next.receiver);
  }
  if (here_.first > 0) return;
  for (size_t leader = 0; leader < links.size(); leader += here_.count) link_leader(leader, links);
}

/// Links the leader at index `leader` with the other ranks of its stage that are here.
void LocalStages::link_leader(size_t leader, std::vector<StageLinks>& links) {
  links[leader].ranks.resize(shape_.rank_count - 1);
  for (size_t rank = 1; rank < here_.count; ++rank) {
    const size_t i = leader + rank;
    comm::Link plans = shape_.make_link(ranks_[leader]->runtime, ranks_[i]->runtime, shape_.window + 1);
    comm::Link results = shape_.make_link(ranks_[i]->runtime, ranks_[leader]->runtime, shape_.window + 1);
    links[leader].ranks[rank - 1] = {std::move(plans.sender), std::move(results.receiver)};
    links[i].from_leader = std::move(plans.receiver);
    links[i].to_leader = std::move(results.sender);
  }
}

std::unique_ptr<StageLoop> LocalStages::make_loop(HostedRank& host, StageLinks links) {
  const StageLoopOptions options{.stage = host.stage,
                                 .position = host.position,
                                 .first = host.stage.value() == 0,
                                 .last = host.stage.value() + 1 == shape_.stage_count,
                                 .bounds = shape_.bounds,
                                 .window = shape_.window,
                                 .watchdog = shape_.watchdog,
                                 .busy = &host.busy};
  return std::make_unique<StageLoop>(host.runtime, options, *host.runner, std::move(links));
}

void LocalStages::start_loop(HostedRank& host, std::unique_ptr<StageLoop> loop) {
  host.busy = false;
  auto shared = std::make_shared<std::unique_ptr<StageLoop>>(std::move(loop));
  asio::post(host.runtime.executor(), [this, &host, shared] {
    host.loop = std::move(*shared);
    host.tasks.spawn("stage", run_loop(host));
  });
}

namespace {

/// A channel that is opened on a stage's Runtime for a waiter on the control Runtime, which may give up.
template <class End>
struct Opening {
  explicit Opening(async::Runtime& control) : done(control) {}
  std::unique_ptr<End> host_link;
  DeviceLinkOptions options;
  std::unique_ptr<End> opened;
  async::Event done;
};

asio::awaitable<void> open(async::Runtime& runtime, tensor::Backend& backend,
                           std::shared_ptr<Opening<comm::LinkSender>> opening) {
  opening->opened =
      co_await open_device_sender(runtime, backend, std::move(opening->host_link), std::move(opening->options));
}

asio::awaitable<void> open(async::Runtime& runtime, tensor::Backend& backend,
                           std::shared_ptr<Opening<comm::LinkReceiver>> opening) {
  opening->opened =
      co_await open_device_receiver(runtime, backend, std::move(opening->host_link), std::move(opening->options));
}

template <class End>
asio::awaitable<void> open_and_notify(async::Runtime& runtime, tensor::Backend& backend,
                                      std::shared_ptr<Opening<End>> opening) {
  std::exception_ptr failure;
  try {
    co_await open(runtime, backend, opening);
  } catch (...) {
    failure = std::current_exception();
  }
  opening->done.set(std::move(failure));
}

tensor::ChannelSupport channels_of(StageRunner& runner) {
  tensor::Backend* backend = runner.channel_backend();
  return backend == nullptr ? tensor::ChannelSupport{} : backend->channel_support();
}

}  // namespace

tensor::ChannelSupport LocalStages::first_channels() {
  return channels_of(*ranks_.front()->runner);
}
tensor::ChannelSupport LocalStages::last_channels() {
  return channels_of(*last_leader().runner);
}

std::vector<comm::LinkStats> LocalStages::link_stats() const {
  std::vector<comm::LinkStats> all;
  for (const auto& host : ranks_) {
    for (comm::LinkStats& link : host->links.stats()) all.push_back(std::move(link));
  }
  return all;
}

std::vector<cache::StageStoreStats> LocalStages::store_stats() const {
  std::vector<cache::StageStoreStats> all;
  for (const auto& host : ranks_) {
    cache::StageStoreStats found{.stage = host->stage, .rank = static_cast<uint32_t>(host->position.rank), .store = {}};
    bool has_store = false;
    for (uint32_t group = 0; group < shape_.bounds.group_count(); ++group) {
      const cache::PageStore* const store = host->runner->store(group);
      if (store == nullptr) continue;
      has_store = true;
      found.store += store->stats();
    }
    if (has_store) all.push_back(found);
  }
  return all;
}

std::vector<StageGraphStats> LocalStages::graph_stats() const {
  std::vector<StageGraphStats> all;
  for (const auto& host : ranks_) {
    const tensor::GraphStats* const steps = host->runner->graph_stats();
    if (steps == nullptr) continue;
    all.push_back(
        {.stage = host->stage, .rank = static_cast<uint32_t>(host->position.rank), .counts = steps->counts()});
  }
  return all;
}

template <class End>
asio::awaitable<Result<std::unique_ptr<End>>> LocalStages::open_device_link(HostedRank& host,
                                                                            std::unique_ptr<End> host_link,
                                                                            DeviceLinkOptions options) {
  const auto opening = std::make_shared<Opening<End>>(control_);
  opening->host_link = std::move(host_link);
  opening->options = std::move(options);
  asio::post(host.runtime.executor(), [&host, opening] {
    host.channel_tasks.spawn("open a channel", open_and_notify(host.runtime, *host.runner->channel_backend(), opening));
  });
  std::optional<Error> failure;
  try {
    co_await opening->done.wait();
  } catch (const boost::system::system_error& cancelled) {
    failure = Error{ErrorCode::kAborted, "the epoch has ended"};
  } catch (const ErrorException& hosts_ended) {
    failure = Error{ErrorCode::kAborted, hosts_ended.what()};
  } catch (const std::exception& error) {
    failure = Error{ErrorCode::kUnavailable, error.what()};
  }
  if (failure) co_return *failure;
  co_return std::move(opening->opened);
}

asio::awaitable<Result<std::unique_ptr<comm::LinkReceiver>>> LocalStages::add_channel(
    std::unique_ptr<comm::LinkReceiver> upstream, DeviceLinkOptions options) {
  return open_device_link(*ranks_.front(), std::move(upstream), std::move(options));
}

asio::awaitable<Result<std::unique_ptr<comm::LinkSender>>> LocalStages::add_channel(
    std::unique_ptr<comm::LinkSender> downstream, DeviceLinkOptions options) {
  return open_device_link(last_leader(), std::move(downstream), std::move(options));
}

asio::awaitable<void> LocalStages::run_loop(HostedRank& host) {
  co_await host.loop->run();
  asio::post(control_.executor(), [this, reason = host.loop->end_reason()] {
    if (end_reason_.empty()) end_reason_ = reason;
    --running_;
    ended_.notify_all();
  });
  host.loop.reset();
}

void LocalStages::stop(const std::string& reason) {
  for (const auto& host : ranks_) {
    asio::post(host->runtime.executor(), [part = host.get(), reason] {
      part->channel_tasks.cancel();
      if (part->loop) part->loop->stop(reason);
    });
  }
}

asio::awaitable<void> LocalStages::join() {
  while (running_ > 0) co_await ended_.wait();
}

}  // namespace millrace::sched
