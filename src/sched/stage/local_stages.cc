#include "sched/stage/local_stages.h"

#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/system/system_error.hpp>
#include <optional>

#include "base/check.h"
#include "sched/stage/stage_loop.h"
#include "tensor/backend.h"

namespace millrace::sched {

struct LocalStages::HostedStage {
  HostedStage(async::Runtime& its_runtime, std::unique_ptr<StageRunner> its_runner)
      : runtime(its_runtime), runner(std::move(its_runner)), tasks(its_runtime), channel_tasks(its_runtime) {}
  async::Runtime& runtime;
  std::unique_ptr<StageRunner> runner;
  async::TaskGroup tasks;
  async::TaskGroup channel_tasks;   // open channels
  std::unique_ptr<StageLoop> loop;  // on its Runtime
  std::atomic<bool> busy{false};    // StageLoopOptions::busy
};

LocalStages::LocalStages(async::Runtime& control, std::vector<async::Runtime*> stage_runtimes,
                         const std::vector<RunnerFactory>& runners, StageId first, const RingConfig& shape)
    : control_(control),
      first_(first),
      shape_(shape),
      upstream_links_(*stage_runtimes.front()),
      downstream_links_(*stage_runtimes.back()),
      ended_(control) {
  CHECK(!runners.empty() && stage_runtimes.size() == runners.size());
  for (size_t i = 0; i < runners.size(); ++i) {
    hosted_stages_.push_back(std::make_unique<HostedStage>(*stage_runtimes[i], runners[i](*stage_runtimes[i])));
  }
}

LocalStages::~LocalStages() {
  CHECK(running_ == 0, "{} stage loops are still running", running_);
}

void LocalStages::start(std::unique_ptr<comm::LinkReceiver> upstream, std::unique_ptr<comm::LinkSender> downstream) {
  CHECK(running_ == 0, "an epoch starts while {} loops of the last one run", running_);
  running_ = hosted_stages_.size();
  end_reason_.clear();
  for (size_t i = 0; i < hosted_stages_.size(); ++i) {
    HostedStage& host = *hosted_stages_[i];
    host.busy = false;
    comm::Link to_next;
    if (i + 1 < hosted_stages_.size()) {
      to_next = shape_.make_link(host.runtime, hosted_stages_[i + 1]->runtime, shape_.window + 1);
    } else {
      to_next.sender = std::move(downstream);
    }
    const StageId stage(first_.value() + static_cast<uint32_t>(i));
    const StageLoopOptions options{.stage = stage,
                                   .first = stage.value() == 0,
                                   .last = stage.value() + 1 == shape_.stage_count,
                                   .bounds = shape_.bounds,
                                   .window = shape_.window,
                                   .watchdog = shape_.watchdog,
                                   .busy = &host.busy};
    auto loop = std::make_shared<std::unique_ptr<StageLoop>>(std::make_unique<StageLoop>(
        host.runtime, options, *host.runner, std::move(upstream), std::move(to_next.sender)));
    upstream = std::move(to_next.receiver);
    asio::post(host.runtime.executor(), [this, &host, loop] {
      host.loop = std::move(*loop);
      host.tasks.spawn("stage", run_loop(host));
    });
  }
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
  return channels_of(*hosted_stages_.front()->runner);
}
tensor::ChannelSupport LocalStages::last_channels() {
  return channels_of(*hosted_stages_.back()->runner);
}

std::vector<cache::StageStoreStats> LocalStages::store_stats() const {
  std::vector<cache::StageStoreStats> all;
  for (size_t i = 0; i < hosted_stages_.size(); ++i) {
    const cache::PageStore* const store = hosted_stages_[i]->runner->store();
    if (store != nullptr) all.push_back({StageId(first_.value() + static_cast<uint32_t>(i)), store->stats()});
  }
  return all;
}

std::vector<StageGraphStats> LocalStages::graph_stats() const {
  std::vector<StageGraphStats> all;
  for (size_t i = 0; i < hosted_stages_.size(); ++i) {
    const tensor::GraphStats* const steps = hosted_stages_[i]->runner->graph_stats();
    if (steps != nullptr) all.push_back({StageId(first_.value() + static_cast<uint32_t>(i)), steps->counts()});
  }
  return all;
}

template <class End>
asio::awaitable<Result<std::unique_ptr<End>>> LocalStages::open_device_link(HostedStage& host,
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
  return open_device_link(*hosted_stages_.front(), std::move(upstream), std::move(options));
}

asio::awaitable<Result<std::unique_ptr<comm::LinkSender>>> LocalStages::add_channel(
    std::unique_ptr<comm::LinkSender> downstream, DeviceLinkOptions options) {
  return open_device_link(*hosted_stages_.back(), std::move(downstream), std::move(options));
}

asio::awaitable<void> LocalStages::run_loop(HostedStage& host) {
  co_await host.loop->run();
  asio::post(control_.executor(), [this, reason = host.loop->end_reason()] {
    if (end_reason_.empty()) end_reason_ = reason;
    --running_;
    ended_.notify_all();
  });
  host.loop.reset();
}

void LocalStages::stop(const std::string& reason) {
  for (const auto& host : hosted_stages_) {
    asio::post(host->runtime.executor(), [part = host.get(), reason] {
      part->channel_tasks.cancel();
      if (part->loop) part->loop->stop(reason);
    });
  }
}

bool LocalStages::busy() const {
  return hosted_stages_.front()->busy.load(std::memory_order_relaxed);
}

async::Runtime& LocalStages::first_runtime() {
  return hosted_stages_.front()->runtime;
}

async::Runtime& LocalStages::last_runtime() {
  return hosted_stages_.back()->runtime;
}

asio::awaitable<void> LocalStages::join() {
  while (running_ > 0) co_await ended_.wait();
}

}  // namespace millrace::sched
