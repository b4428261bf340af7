#include "sched/local_stages.h"

#include <boost/asio/post.hpp>

#include "base/check.h"

namespace millrace::sched {

LocalStages::LocalStages(async::Runtime& control, std::vector<async::Runtime*> stage_runtimes,
                         const std::vector<RunnerFactory>& runners, StageId first, const RingShape& shape)
    : control_(control), first_(first), shape_(shape), ended_(control) {
  CHECK(!runners.empty() && stage_runtimes.size() == runners.size());
  for (size_t i = 0; i < runners.size(); ++i) {
    hosts_.push_back(std::make_unique<Host>(*stage_runtimes[i], runners[i](*stage_runtimes[i])));
  }
}

LocalStages::~LocalStages() { CHECK(running_ == 0, "{} stage loops are still running", running_); }

void LocalStages::start(std::unique_ptr<comm::LinkReceiver> upstream, std::unique_ptr<comm::LinkSender> downstream) {
  CHECK(running_ == 0, "a generation starts while {} loops of the last one run", running_);
  running_ = hosts_.size();
  end_reason_.clear();
  for (size_t i = 0; i < hosts_.size(); ++i) {
    Host& host = *hosts_[i];
    comm::Link to_next;
    if (i + 1 < hosts_.size()) {
      to_next = shape_.make_link(host.runtime, hosts_[i + 1]->runtime, shape_.window + 1);
    } else {
      to_next.sender = std::move(downstream);
    }
    const StageId stage(first_.value() + static_cast<uint32_t>(i));
    const StageLoopOptions options{stage, stage.value() == 0, stage.value() + 1 == shape_.stage_count, shape_.bounds,
                                   shape_.window};
    auto loop = std::make_shared<std::unique_ptr<StageLoop>>(std::make_unique<StageLoop>(
        host.runtime, options, *host.runner, std::move(upstream), std::move(to_next.sender)));
    upstream = std::move(to_next.receiver);
    asio::post(host.runtime.executor(), [this, &host, loop] {
      host.loop = std::move(*loop);
      host.tasks.spawn("stage", run_loop(host));
    });
  }
}

asio::awaitable<void> LocalStages::run_loop(Host& host) {
  co_await host.loop->run();
  asio::post(control_.executor(), [this, reason = host.loop->end_reason()] {
    if (end_reason_.empty()) end_reason_ = reason;
    --running_;
    ended_.notify_all();
  });
  host.loop.reset();
}

void LocalStages::stop(const std::string& reason) {
  for (const auto& host : hosts_) {
    asio::post(host->runtime.executor(), [part = host.get(), reason] {
      if (part->loop) part->loop->stop(reason);
    });
  }
}

asio::awaitable<void> LocalStages::join() {
  while (running_ > 0) co_await ended_.wait();
}

}  // namespace millrace::sched
