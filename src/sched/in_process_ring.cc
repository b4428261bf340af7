#include "sched/in_process_ring.h"

#include <algorithm>

#include "base/check.h"
#include "comm/in_process_link.h"

namespace millrace::sched {

InProcessRing::InProcessRing(async::Runtime& head_runtime, const std::vector<async::Runtime*>& stage_runtimes,
                             const std::vector<RunnerFactory>& runners, const HeadOptions& head,
                             const StageBounds& bounds) {
  CHECK(!runners.empty() && stage_runtimes.size() == runners.size());
  const size_t window = head.scheduler.window;
  parts_.push_back(std::make_unique<Part>(head_runtime));
  for (async::Runtime* runtime : stage_runtimes) parts_.push_back(std::make_unique<Part>(*runtime));
  // links[i] leads from part i to the next; the last stage's leads back to the head. The window bounds what waits.
  std::vector<comm::Link> links;
  for (size_t i = 0; i < parts_.size(); ++i) {
    links.push_back(
        comm::make_in_process_link(parts_[i]->runtime, parts_[(i + 1) % parts_.size()]->runtime, window + 1));
  }
  head_ = std::make_unique<Head>(head_runtime, head, std::move(links.front().sender), std::move(links.back().receiver));
  for (size_t i = 0; i < runners.size(); ++i) {
    const StageLoopOptions options{StageId(static_cast<uint32_t>(i)), i == 0, i + 1 == runners.size(), bounds, window};
    stages_.push_back(std::make_unique<StageLoop>(*stage_runtimes[i], options, runners[i](*stage_runtimes[i]),
                                                  std::move(links[i].receiver), std::move(links[i + 1].sender)));
  }
}

void InProcessRing::start() {
  asio::post(parts_[0]->runtime.executor(), [this] { parts_[0]->tasks.spawn("head", head_->run()); });
  for (size_t i = 0; i < stages_.size(); ++i) {
    asio::post(parts_[i + 1]->runtime.executor(), [this, i] { parts_[i + 1]->tasks.spawn("stage", stages_[i]->run()); });
  }
}

bool InProcessRing::stopped() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->tasks.size() == 0; });
}

}  // namespace millrace::sched
